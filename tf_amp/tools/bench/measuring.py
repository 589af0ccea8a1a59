"""Run the processes of a job one after the other, and keep what each has measured."""

from __future__ import annotations

import os
import pathlib
import tempfile
import threading
from collections.abc import Callable, Iterator

from tf_amp.config.amp_config import TUNE
from tf_amp.config.setting_values import DEFAULT_TUNE, checked_tune
from tf_amp.tools.bench.job import Job, Run, Task
from tf_amp.tools.bench.methods import (
    FLOAT32,
    environment_of,
    is_ours,
    settings_of_method,
)
from tf_amp.tools.bench.processes import run_worker
from tf_amp.tools.bench.record import Record
from tf_amp.tools.bench.samples import Sample, sample_of
from tf_amp.tools.bench.worker.journal import lines_of


def runs_left(record: Record, rounds: int) -> tuple[Run, ...]:
    """Return the processes that are still to be started."""
    done = {(each.method, each.batch, each.round) for each in record.samples}
    runs = record.job.runs(rounds)
    return tuple(r for r in runs if (r.method, r.batch, r.round) not in done)


def measured(
    record: Record,
    rounds: int,
    begin: Callable[[Run, int], None],
    stop: threading.Event,
) -> Iterator[Record]:
    """Yield the record after each process, which has one sample more.

    Where a method has failed on a batch size, before enough steps, it is not tried
    again; nor is any, where float32 has. Each method is measured so many rounds on each
    batch size. `begin` is called before each process, those that are left out included,
    with how many there were before. Once `stop` is set: KeyboardInterrupt, and no
    process is left.
    """
    failed: set[tuple[str, int | None]] = set()
    with tempfile.TemporaryDirectory(prefix="tf-amp-bench-") as folder:
        for number, run in enumerate(runs_left(record, rounds)):
            begin(run, number)
            if failed & {(run.method, run.batch), (FLOAT32, run.batch)}:
                continue
            sample = sample_of_run(record.job, run, pathlib.Path(folder), stop)
            if not sample.is_measured:
                failed.add((run.method, run.batch))
            record = record.with_sample(sample)
            yield record


def sample_of_run(
    job: Job, run: Run, folder: pathlib.Path, stop: threading.Event
) -> Sample:
    """Run one process, and return what it has measured.

    Each method of tf-amp has a database of costs in the folder, where its next process
    finds what earlier ones have measured. Where it learns first, it has one for each
    batch size and round. KeyboardInterrupt: `stop` was set; no process is left.
    """
    journal = folder / "journal"
    costs = folder / f"costs-{job.methods.index(run.method)}"
    if job.learns:
        costs = costs / f"{run.batch}-{run.round}"
    environment = environment_of(job, run, os.environ, str(costs))
    task = Task(
        job.target, run.method, job.mode, run.batch, job.step_seconds, str(journal)
    )
    settings = {**dict(job.settings), **settings_of_method(run.method)}
    is_tuned = checked_tune(settings.get(TUNE) or DEFAULT_TUNE) != "off"
    # A process of ours that tunes leaves costs for the next one.
    learns = job.learns and is_ours(run.method) and is_tuned
    for _ in range(2 if learns else 1):
        journal.unlink(missing_ok=True)
        ended = run_worker(task.to_json(), environment, job.seconds, stop)
    return sample_of(run, job.mode, lines_of(journal), ended)
