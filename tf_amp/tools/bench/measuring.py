"""Run the processes of a job one after the other, and keep what each has measured.

Each runs to its end or that of its time, whatever it prints or forks.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping

from tf_amp.config.amp_config import TUNE
from tf_amp.config.setting_values import DEFAULT_TUNE, checked_tune
from tf_amp.run import progress
from tf_amp.tools.bench.job import (
    FLOAT32,
    BenchJob,
    Run,
    Task,
    environment_of,
    is_ours,
    settings_of_method,
)
from tf_amp.tools.bench.journal import Ended, Sample, lines_of, sample_of
from tf_amp.tools.bench.record import BenchRecord

_ROOT = pathlib.Path(__file__).resolve().parents[3]
# The folder it is started in, which comes first, may hold modules with names of ours.
_START = (
    f"import sys; sys.path[0] = {os.devnull!r}; sys.path.append({str(_ROOT)!r}); "
    "from tf_amp.tools.bench import worker; worker.main()"
)
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_KEPT_BYTES = 65536


def runs_left(record: BenchRecord, rounds: int) -> tuple[Run, ...]:
    """Return the processes that are still to be started."""
    done = {(each.method, each.batch, each.round) for each in record.samples}
    runs = record.job.runs(rounds)
    return tuple(r for r in runs if (r.method, r.batch, r.round) not in done)


def measured(
    record: BenchRecord, rounds: int, stop: threading.Event
) -> Iterator[BenchRecord]:
    """Yield the record after each process, which has one sample more.

    Where a method has failed on a batch size, before enough steps, it is not tried
    again; nor is any, where float32 has. Each method is measured so many rounds on each
    batch size. Reported is each process, those that are left out included. Once `stop`
    is set: KeyboardInterrupt, and no process is left.
    """
    total = sum(1 for _ in record.job.runs(rounds))
    left = runs_left(record, rounds)
    failed: set[tuple[str, int | None]] = set()
    with tempfile.TemporaryDirectory(prefix="tf-amp-bench-") as folder:
        for number, run in enumerate(left, total - len(left)):
            progress.report(str(run), number, total)
            if failed & {(run.method, run.batch), (FLOAT32, run.batch)}:
                continue
            sample = sample_of_run(record.job, run, pathlib.Path(folder), stop)
            if not sample.is_measured:
                failed.add((run.method, run.batch))
            record = record.with_sample(sample)
            yield record


def sample_of_run(
    job: BenchJob, run: Run, folder: pathlib.Path, stop: threading.Event
) -> Sample:
    """Run one process, and return what it has measured.

    Each method of tf-amp has a cache in the folder, where its next process finds what
    steps of earlier ones have shown. Where it learns first, it has one for each batch
    size and round. KeyboardInterrupt: `stop` was set; no process is left.
    """
    journal = folder / "journal"
    costs = folder / f"costs-{job.methods.index(run.method)}"
    if job.learns:
        costs = costs / f"{run.batch}-{run.round}"
    environment = environment_of(job, run, os.environ, str(costs))
    task = Task(job, run, str(journal))
    settings = {**dict(job.settings), **settings_of_method(run.method)}
    is_tuned = checked_tune(settings.get(TUNE) or DEFAULT_TUNE) != "off"
    # A process of ours that compares steps leaves verdicts for the next one.
    learns = job.learns and is_ours(run.method) and is_tuned
    for _ in range(2 if learns else 1):
        journal.unlink(missing_ok=True)
        ended = _run_worker(task.to_json(), environment, job.seconds, stop)
    return sample_of(run, job.mode, lines_of(journal), ended)


def _run_worker(
    task: str, environment: Mapping[str, str], seconds: float, stop: threading.Event
) -> Ended:
    """Run a worker, and end it with all it has started once its time is over.

    It is in a session of its own, so that Ctrl-C reaches it by way of this process,
    where it sets `stop`: KeyboardInterrupt, and no process is left. It is given the
    task as JSON and all its variables; what it prints is dropped.
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, task],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status, usage, is_over = _waited(process, begin + seconds, stop)
        finally:
            # What is left of it, and of those that it has started.
            _signal_group(process, signal.SIGKILL)
            if process.returncode is None:
                process.wait()
        errors.seek(max(errors.seek(0, os.SEEK_END) - _KEPT_BYTES, 0))
        tail = errors.read().decode(errors="replace")
    return Ended(
        status=status,
        is_out_of_time=is_over,
        errors=tail,
        peak_bytes=usage.ru_maxrss * 1024,
        begin=begin,
    )


def _waited(
    process: subprocess.Popen[bytes], until: float, stop: threading.Event
) -> tuple[int, resource.struct_rusage, bool]:
    """Wait for a process; ask it to end when its time is over, then make it."""
    is_over = False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage, is_over
        if stop.is_set():
            raise KeyboardInterrupt
        if time.monotonic() > until:
            _signal_group(process, signal.SIGKILL if is_over else signal.SIGTERM)
            is_over, until = True, time.monotonic() + _GRACE_SECONDS
        time.sleep(_POLL_SECONDS)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
