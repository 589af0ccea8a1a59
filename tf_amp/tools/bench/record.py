"""A measurement: its processes, run one after the other, and the rows they come to.

Each process runs to its end or that of its time, whatever it prints or forks. Beside
the figures is what a reader needs to repeat them: versions, processor, revision, date.
A record is the JSON file from which the measurement is continued. The noise is what
float32 run again shows against float32. A difference is one that lies beyond it, and
shows in more rounds than luck would explain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import pathlib
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from tf_amp.config import devices
from tf_amp.config.amp_config import HIDING_IS_SAID, TUNE
from tf_amp.config.setting_values import DEFAULT_TUNE, checked_tune
from tf_amp.errors import ConfigError
from tf_amp.report.codec import from_plain, plain
from tf_amp.report.files import write_whole
from tf_amp.report.versions import versions_of
from tf_amp.run import progress
from tf_amp.tools.bench.job import (
    AGAIN,
    FLOAT32,
    FUNCTION,
    BenchJob,
    Program,
    Run,
    Task,
    environment_of,
    is_ours,
    settings_of_method,
)
from tf_amp.tools.bench.journal import Ended, OpCounts, Sample, lines_of, sample_of

# With fewer, no order of the processes is beyond luck.
FEWEST_ROUNDS = 3
_LUCK = 0.05
FASTER, SLOWER, WITHIN_NOISE = "faster", "slower", "within noise"
TOO_FEW_ROUNDS, NOISE = "too few rounds", "noise"
# What ran float32's own graph is no faster, whatever a clock says.
SAME_GRAPH = "same graph"


@dataclasses.dataclass(frozen=True)
class SpeedUp:
    """Time of float32 over that of a method; more than 1 is faster.

    The median is the ratio of the medians of all rounds, lowest and highest are of one
    round. The noise, in percent, is what a median round differs by.
    """

    median: float
    lowest: float
    highest: float
    noise: int

    @property
    def difference(self) -> int:
        """By how many percent the faster of both is faster, as it is shown."""
        return _percent(self.median)


def _percent(ratio: float) -> int:
    return round(math.expm1(abs(math.log(ratio))) * 100.0)


def speed_up_of(
    seconds: Mapping[int, float], reference: Mapping[int, float]
) -> SpeedUp | None:
    """Return the speed-up of a method by seconds of a step of it, and of float32's.

    Both are by round; None where no round has both.
    """
    common = seconds.keys() & reference.keys()
    if not common:
        return None
    ratios = [reference[number] / seconds[number] for number in common]
    overall = median(reference.values()) / median(seconds.values())
    typical = median(_percent(ratio) for ratio in ratios)
    return SpeedUp(overall, min(ratios), max(ratios), round(typical))


def _verdict(
    speed_up: SpeedUp, seconds: Mapping[int, float], runs: Sequence[Mapping[int, float]]
) -> str:
    """Say whether a method is faster than both runs of float32, or slower.

    In each round three processes run in turns. Of equal ones each is the fastest in a
    third of the rounds; the chance of more is that of a binomial distribution.

    Args:
      speed_up: of the method.
      seconds: of its steps, by round.
      runs: the same of float32 and of float32 again.
    """
    first, again = runs
    rounds = seconds.keys() & first.keys() & again.keys()
    if len(rounds) < FEWEST_ROUNDS:
        return TOO_FEW_ROUNDS
    noise = speed_up_of(again, first)
    if noise is None or speed_up.difference <= noise.noise:
        return WITHIN_NOISE
    faster = sum(seconds[n] < min(first[n], again[n]) for n in rounds)
    slower = sum(seconds[n] > max(first[n], again[n]) for n in rounds)
    wins, verdict = max((faster, FASTER), (slower, SLOWER))
    is_beyond_luck = _chance_of(wins, len(rounds)) <= _LUCK
    return verdict if is_beyond_luck else WITHIN_NOISE


def _chance_of(wins: int, rounds: int) -> float:
    """Return how likely one of three equal processes wins so many rounds or more."""
    orders = sum(
        math.comb(rounds, won) << (rounds - won) for won in range(wins, rounds + 1)
    )
    return orders / float(3**rounds)


def largest_error(
    values: Mapping[int, Sequence[float | None]],
    reference: Mapping[int, Sequence[float | None]],
) -> float | None:
    """Return the largest distance to float32's values of the same round.

    It is the norm of the difference over float32's norm, without a unit; NaN where a
    value is none. None where no round has both, or they are of different numbers.
    """
    errors = []
    for number, each in values.items():
        expected = reference.get(number, ())
        if len(each) != len(expected) or not each:
            continue
        float32 = np.array(expected, float)
        distance = np.linalg.norm(np.array(each, float) - float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            errors.append(distance / np.linalg.norm(float32) if distance else 0.0)
    return float(np.max(errors)) if errors else None


@dataclasses.dataclass(frozen=True)
class BenchRow:
    """One method on one batch size; names as in Sample, of which these differ.

    Attributes:
      rounds: that have measured it, of which seconds and bytes are the medians.
      step_seconds: None where all have failed.
      items_per_second: examples, at that; None where their number is not known.
      speed_up: over float32; None without float32.
      verdict: whether that exceeds the noise; "" where nothing is to be said.
      error: of results, relative to float32, the largest of the rounds; None where
        nothing can be compared.
      ops: that were executed in the last of the rounds.
      is_no_op: whether something was switched on, and the graph that was executed is
        float32's.
      float32_ops: so many operations were executed in float32, where the method ran
        another graph without any 16 bits, as fusions make one; else None.
      failure: of the first process that failed, before others one without steps.
    """

    method: str
    batch: int | None
    rounds: int
    step_seconds: float | None
    items_per_second: float | None
    speed_up: SpeedUp | None
    verdict: str
    first_step_seconds: float | None
    peak_bytes: int
    error: float | None
    ops: OpCounts | None
    is_no_op: bool
    float32_ops: int | None
    timed: str
    failure: str
    note: str
    compared: str
    warning: str


def summarized(job: BenchJob, samples: Sequence[Sample]) -> tuple[BenchRow, ...]:
    """Return a row for every batch size and method that a process was run for."""
    rows = []
    for batch in job.batches:
        by_method = {
            method: [s for s in samples if s.batch == batch and s.method == method]
            for method in job.methods
        }
        reference = _measured(by_method[FLOAT32])
        again = _seconds(_measured(by_method[AGAIN]))
        rows += [
            _row(m, group, reference, again) for m, group in by_method.items() if group
        ]
    return tuple(rows)


def _row(
    method: str,
    samples: Sequence[Sample],
    reference: Mapping[int, Sample],
    again: Mapping[int, float],
) -> BenchRow:
    measured = _measured(samples)
    done = [*measured.values()]
    batch = samples[0].batch
    # Those first that have left nothing.
    failed = sorted((s for s in samples if s.failure), key=lambda s: s.is_measured)
    seconds = _seconds(measured)
    step = median(seconds.values()) if done else None
    speed_up = None if method == FLOAT32 else speed_up_of(seconds, _seconds(reference))
    ops = done[-1].ops if done else None
    others = [each.ops for each in reference.values()]
    # With 16 bits it is another graph, and of float32 run again the same.
    is_compared = method not in (FLOAT32, AGAIN) and ops is not None and not ops.low
    float32_ops = others[-1] if others and is_compared else None
    is_no_op = float32_ops is not None and ops == float32_ops
    values, expected = (
        {number: each.values for number, each in by_round.items()}
        for by_round in (measured, reference)
    )
    firsts = [s.first_step_seconds for s in done if s.first_step_seconds is not None]
    verdict = NOISE if method == AGAIN else ""
    if method != AGAIN and speed_up is not None and again:
        verdict = _verdict(speed_up, seconds, (_seconds(reference), again))
        if is_no_op and verdict in (FASTER, WITHIN_NOISE):
            verdict = SAME_GRAPH
    return BenchRow(
        method=method,
        batch=batch,
        rounds=len(done),
        step_seconds=step,
        items_per_second=batch / step if batch and step else None,
        speed_up=speed_up,
        verdict=verdict,
        first_step_seconds=median(firsts) if firsts else None,
        peak_bytes=int(median(s.peak_bytes for s in done)) if done else 0,
        error=None if method == FLOAT32 else largest_error(values, expected),
        ops=ops,
        is_no_op=is_no_op,
        float32_ops=float32_ops.total if float32_ops and not is_no_op else None,
        timed=done[-1].timed if done else "",
        failure=failed[0].failure if failed else "",
        note=next((s.note for s in samples if s.note), ""),
        compared=next((s.compared for s in samples if s.compared), ""),
        warning=next((s.warning for s in samples if s.warning), ""),
    )


def _measured(samples: Sequence[Sample]) -> dict[int, Sample]:
    return {each.round: each for each in samples if each.is_measured}


def _seconds(measured: Mapping[int, Sample]) -> dict[int, float]:
    return {number: each.seconds for number, each in measured.items()}


_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras", "numpy")
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Context:
    """Where and when something was measured.

    Attributes:
      versions: of Python, tf-amp and what they stand on, by name.
      processor: model, how many cores this process may use, and what decides its speed.
      revision: of the git repository that the target is in, with "+" where files
        differ from it; "" where there is none.
      date: when it was begun, in UTC.
    """

    versions: tuple[tuple[str, str], ...]
    processor: str
    revision: str
    date: str


@dataclasses.dataclass(frozen=True)
class BenchRecord:
    """What was measured, where, and of what; the summary is for readers of the JSON."""

    JSON_PROPERTIES = ("version", "summary")

    job: BenchJob
    context: Context
    samples: tuple[Sample, ...] = ()

    @property
    def version(self) -> int:
        """Of the form that it is kept in."""
        return _VERSION

    @property
    def summary(self) -> tuple[BenchRow, ...]:
        """What the samples come to."""
        return summarized(self.job, self.samples)

    def with_sample(self, sample: Sample) -> BenchRecord:
        """Return the record with one sample more."""
        return dataclasses.replace(self, samples=(*self.samples, sample))

    def write(self, path: pathlib.Path) -> None:
        """Write it as JSON; null stands for numbers that JSON has no words for.

        Raises:
          ConfigError: the file cannot be written; what was there before stays.
        """
        text = json.dumps(self, default=plain)
        standard = json.loads(text, parse_constant=lambda _: None)
        write_whole(path, json.dumps(standard).encode())


def continued(fresh: BenchRecord, path: pathlib.Path) -> BenchRecord:
    """Return what a file holds of the same job; what is not measured is run again.

    `fresh` is a record of the job, with nothing measured; the file need not exist.

    Raises:
      ConfigError: it holds something else; the message says what differs.
    """
    if not path.exists():
        return fresh
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--json: {path} cannot be read: {error}.") from error
    if not isinstance(values, dict) or values.get("version") != _VERSION:
        raise ConfigError(f"--json: {path} was not written by `tf-amp bench`.")
    try:
        record = from_plain(BenchRecord, values)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"--json: {path} does not hold what `tf-amp bench` writes: {error!r}."
        ) from error
    was, now = record.job.target, fresh.job.target
    differing = _differing(was, now, but="digest")
    if not differing and was.digest != now.digest:
        unknown = f"it does not say which text of {now.name} was measured"
        differing = [f"{now.name} was edited since" if was.digest else unknown]
    differing += _differing(record.job, fresh.job, but="target")
    differing += _differing(record.context, fresh.context, but="date")
    if differing:
        raise ConfigError(
            f"--json: {path} holds another job: {'; '.join(differing)}. Name another "
            "file, or remove it."
        )
    done = tuple(each for each in record.samples if each.is_measured)
    return dataclasses.replace(record, samples=done)


def _differing(old: Any, new: Any, but: str) -> list[str]:
    """Return which fields of two dataclasses differ, all but one, and how."""
    write = functools.partial(json.dumps, ensure_ascii=False)
    return [
        f"{name} was {write(before)}, now {write(now)}"
        for name, now in vars(new).items()
        if name != but and (before := getattr(old, name)) != now
    ]


def context_of(target: Program) -> Context:
    """Return the context of a measurement that begins here and now."""
    now = datetime.datetime.now(datetime.timezone.utc)
    present, cores = devices.cpu_flags(), len(os.sched_getaffinity(0))
    flags = " ".join(flag for flag in _FLAGS if flag in present)
    path = pathlib.Path(target.name if target.kind != FUNCTION else "").resolve()
    return Context(
        (("Python", platform.python_version()), *versions_of(_PACKAGES)),
        f"{devices.cpu_model()}, {cores} cores ({flags})",
        revision_of(path if path.is_dir() else path.parent),
        f"{now:%Y-%m-%d %H:%M} UTC",
    )


def revision_of(folder: pathlib.Path, but: Sequence[str] = ()) -> str:
    """Return the git revision that a folder is at; "" where there is none.

    Paths in the folder whose patterns are given may differ; where others do, there is a
    "+" behind the revision.
    """
    revision = _git(folder, "rev-parse", "--short=12", "HEAD")
    others = (":/", *(f":(exclude){each}" for each in but))
    is_changed = revision and _git(folder, "status", "--porcelain", "--", *others)
    return f"{revision}+" if is_changed else revision


def _git(folder: pathlib.Path, *arguments: str) -> str:
    """Return what git says of a folder; "" where there is no git, or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


_ROOT = pathlib.Path(__file__).resolve().parents[3]
# The folder it is started in, which comes first, may hold modules with names of ours.
_START = (
    f"import sys; sys.path[0] = {os.devnull!r}; sys.path.append({str(_ROOT)!r}); "
    "from tf_amp.tools.bench import worker; worker.main()"
)
# The file, in the folder of its run, that a worker writes.
JOURNAL = "journal"
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_KEPT_BYTES = 65536


def runs_left(record: BenchRecord, rounds: int) -> tuple[Run, ...]:
    """Return the processes that are still to be started."""
    done = {(each.method, each.batch, each.round) for each in record.samples}
    runs = record.job.runs(rounds)
    return tuple(r for r in runs if (r.method, r.batch, r.round) not in done)


def processes_of(job: BenchJob, run: Run) -> int:
    """Return how many processes a run takes: two where the first one learns costs."""
    settings = {**dict(job.settings), **settings_of_method(run.method)}
    is_tuned = checked_tune(settings.get(TUNE) or DEFAULT_TUNE) != "off"
    # A process of ours that compares steps leaves verdicts for the next one.
    return 2 if job.learns and is_ours(run.method) and is_tuned else 1


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
    job: BenchJob,
    run: Run,
    folder: pathlib.Path,
    stop: threading.Event,
    mebibytes: int | None = None,
) -> Sample:
    """Run one process, and return what it has measured.

    Each method of tf-amp has a cache in the folder, where its next process finds what
    steps of earlier ones have shown. Where it learns first, it has one for each batch
    size and round. KeyboardInterrupt: `stop` was set; no process is left.
    """
    journal = folder / JOURNAL
    costs = folder / f"costs-{job.methods.index(run.method)}"
    if job.learns:
        costs = costs / f"{run.batch}-{run.round}"
    costs.mkdir(parents=True, exist_ok=True)
    # Each new folder would count as a machine on which that was not said.
    (costs / HIDING_IS_SAID).touch()
    environment = environment_of(job, run, os.environ, str(costs))
    if mebibytes is not None:
        environment |= limited_to(mebibytes)
    task = Task(job, run, str(journal), mebibytes)
    for _ in range(processes_of(job, run)):
        journal.unlink(missing_ok=True)
        ended = _run_worker(task.to_json(), environment, job.seconds, stop)
    return sample_of(run, job.mode, lines_of(journal), ended)


def limited_to(mebibytes: int | None) -> dict[str, str]:
    """Return variables by which the tensors of CPUs are counted, and limited."""
    limit = {} if mebibytes is None else {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(mebibytes)}
    return {"TF_CPU_ALLOCATOR_USE_BFC": "true", **limit}


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
