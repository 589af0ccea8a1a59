"""What one process has measured, made of its journal and of how it ended.

Steps that were done count, whatever became of the program after them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tf_amp.compare.kept_file import is_number
from tf_amp.tools.bench.job import Run
from tf_amp.tools.bench.worker import journal
from tf_amp.tools.bench.worker.journal import OpCounts

# Fewer steps are mostly the tracing, planning and filling of caches.
FEWEST_STEPS = 6
# That are kept; of more of them, so many at equal distances.
_MOST_KEPT = 2000
_KINDS = {"train": ("train",), "infer": ("predict", "test")}
_TITLES = {"train": "fit", "predict": "predict", "test": "evaluate"}
# TensorFlow's names of functions are "__inference_step_123".
_NAME = re.compile(r"^(?:__inference_)?(.*?)(?:_\d+)?$")
_NOTE = "tf-amp: "
# Of the log of `tf_amp.rewriting.failures`.
_WARNING = re.compile(r"graph '.*' stays float32: .*")
_TRACEBACK = "Traceback (most recent call last):"
# Of Python, where an exception was caught by nobody.
_EXCEPTION_STATUS = 1
_NO_STEP = "no step was seen"
# Characters of what is said in a line, and of each of two parts.
_LONGEST, _PART = 200, 95
_LONGEST_TRACEBACK = 10_000

Step = tuple[float, float, int]
# Lines of a journal by what they report.
Seen = dict[str, list[list[Any]]]


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Its status is the exit code, or minus the number of the signal that ended it; errors
    are the end of what it wrote to stderr. Of the machine are the most memory that it
    held at once, and the seconds of the clock when it was started.
    """

    status: int
    is_out_of_time: bool
    errors: str
    peak_bytes: int
    begin: float

    @property
    def failure(self) -> str:
        """Why it failed, in one line; "" if it did not."""
        if self.is_out_of_time or not self.status:
            return ""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        last = lines[-1].strip() if lines else ""
        if self.status < 0:
            return _said(f"ended by {signal.Signals(-self.status).name}", last)
        error = _error_line(lines) if self.status == _EXCEPTION_STATUS else ""
        said = last if error in ("", last) else f"{error[:_PART]} ... {last[:_PART]}"
        return _said(f"exit status {self.status}", said)

    @property
    def traceback(self) -> str:
        """The traceback of the exception that ended it; "" without one."""
        begin = self.errors.rfind(_TRACEBACK)
        is_uncaught = self.status == _EXCEPTION_STATUS and begin >= 0
        return self.errors[begin:][-_LONGEST_TRACEBACK:] if is_uncaught else ""


def _said(how: str, what: str) -> str:
    what = what[:_LONGEST].rstrip(".")
    return f"{how}: {what}" if what else how


def _error_line(lines: Sequence[str]) -> str:
    """Return the first line of the last exception, which has its type; "" without one.

    The frames between are indented, whatever follows in the message need not be.
    """
    begins = [n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    after = lines[begins[-1] + 1 :] if begins else ()
    return next((line.strip() for line in after if not line[0].isspace()), "")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One process: a method on a batch size, and why it failed.

    Attributes:
      method: as in the job.
      batch: examples per step; None where the script has its own.
      round: counted from 0.
      timed: what its steps are, in words.
      step_seconds: of each step in turn, from the first one on.
      first_step_seconds: from the start of the process to the end of its first step.
      peak_bytes: most of the machine's memory that the process held at once.
      values: a few numbers of its first steps.
      ops: of the graphs that its timed steps executed; None: they could not be seen.
      failure: how it ended, if not well, or why there is nothing else; "" otherwise.
      traceback: of the exception that ended it before enough steps; "" without one.
      was_ended: whether it was still running when its time was over.
      note: what tf-amp said on stderr, its first line.
      warning: what its log says there of a graph that it failed to rewrite.
    """

    method: str
    batch: int | None
    round: int
    timed: str = ""
    step_seconds: tuple[float, ...] = ()
    first_step_seconds: float | None = None
    peak_bytes: int = 0
    values: tuple[float, ...] = ()
    ops: OpCounts | None = None
    failure: str = ""
    traceback: str = ""
    was_ended: bool = False
    note: str = ""
    warning: str = ""

    def __str__(self) -> str:
        """Return why it failed, in one line."""
        where = "" if self.batch is None else f" at batch {self.batch}"
        return f"{self.method}{where}: {self.failure}"

    @property
    def is_measured(self) -> bool:
        """Whether enough steps were done, even if it failed after them."""
        return bool(self.step_seconds)

    @property
    def is_idle(self) -> bool:
        """Whether it ended well, and did no step."""
        return self.failure.startswith(f"{_NO_STEP}:")

    @property
    def seconds(self) -> float:
        """Median seconds of the later half of the steps.

        The earlier half holds what happens once: tracing, measuring, comparing.
        """
        return median(self.step_seconds[len(self.step_seconds) // 2 :])


def sample_of(
    run: Run, mode: str, lines: Sequence[Sequence[Any]], ended: Ended
) -> Sample:
    """Return what a process has measured, by its journal and how it ended.

    The mode, "train" or "infer", says which of Keras' loops is looked at.
    """
    noted = [each for each in ended.errors.splitlines() if each.startswith(_NOTE)]
    warned = _WARNING.search(ended.errors)
    base = Sample(
        run.method,
        run.batch,
        run.round,
        peak_bytes=ended.peak_bytes,
        was_ended=ended.is_out_of_time,
        note=noted[0].removeprefix(_NOTE)[:200] if noted else "",
        warning=warned[0][:200] if warned else "",
    )
    seen: Seen = defaultdict(list)
    for what, *rest in lines:
        seen[what].append(rest)
    source = _source_of(seen, mode)
    if len(source.steps) < FEWEST_STEPS:
        failure = ended.failure or _too_few(source, ended)
        return dataclasses.replace(base, failure=failure, traceback=ended.traceback)
    seconds = [(end - begin) / count for begin, end, count in source.steps]
    half = source.steps[len(seconds) // 2][0]
    stride = -(-len(seconds) // _MOST_KEPT)
    return dataclasses.replace(
        base,
        timed=source.title,
        step_seconds=tuple(float(f"{each:.6g}") for each in seconds[::stride]),
        first_step_seconds=source.steps[0][1] - ended.begin,
        values=tuple(
            float(f"{each:.7g}")
            for name, values in seen[journal.VALUES]
            if name in source.names
            for each in values
        ),
        ops=_ops_between(seen, half, source.steps[-1][1]),
        failure=ended.failure and f"after the steps that count: {ended.failure}",
    )


@dataclasses.dataclass(frozen=True)
class _Source:
    """What is taken for the steps: in words, its names in the journal, its times."""

    title: str
    names: frozenset[str]
    steps: Sequence[Step]


def _source_of(seen: Seen, mode: str) -> _Source:
    """Return Keras' batches of the mode; else the calls of what is called most."""
    steps = defaultdict(list)
    for kind, *times in seen[journal.STEP]:
        steps[kind].append(tuple(times))
    own = journal.OWN_KIND
    if own in steps:
        return _Source("calls of the step", frozenset({own}), steps[own])
    for kind in _KINDS[mode]:
        if kind in steps:
            title = f"batches of Keras' {_TITLES[kind]}"
            return _Source(title, frozenset({kind}), steps[kind])
    return _most_called(seen)


def _most_called(seen: Seen) -> _Source:
    """Return the calls of the function that is called most often, or longest."""
    full_names = {number: name for number, name, _ in seen[journal.FUNCTION]}
    calls: dict[str, list[tuple[float, float]]] = defaultdict(list)
    names: dict[str, set[str]] = defaultdict(set)
    for number, begin, end in seen[journal.CALL]:
        if number not in full_names:
            continue
        full = full_names[number]
        short = _NAME.sub(r"\1", full)
        calls[short].append((begin, end))
        names[short].add(full)
    if not calls:
        return _Source("", frozenset(), ())

    def weight(name: str) -> tuple[int, float]:
        return len(calls[name]), sum(end - begin for begin, end in calls[name])

    most = max(calls, key=weight)
    # A step lasts from the begin of a call to that of the next one.
    bounds = [*(begin for begin, _ in calls[most]), calls[most][-1][1]]
    steps = [(begin, end, 1) for begin, end in itertools.pairwise(bounds)]
    return _Source(f"calls of {most}", frozenset(names[most]), steps)


def _too_few(source: _Source, ended: Ended) -> str:
    within = " in its time" if ended.is_out_of_time else ""
    if not source.steps:
        return (
            f"{_NO_STEP}{within}: neither batches of Keras nor calls of a "
            "tf.function or runs of a Session"
        )
    return (
        f"{len(source.steps)} steps were seen{within} ({source.title}); needed are "
        f"{FEWEST_STEPS} or more"
    )


def _ops_between(seen: Seen, begin: float, end: float) -> OpCounts | None:
    """Return the operations of all functions that were called within a time.

    Of several instances of one, that with the most in 16 bits counts.
    """
    called = {n for n, at, _ in seen[journal.CALL] if begin <= at <= end}
    found: dict[str, OpCounts] = {}
    for number, name, ops in seen[journal.FUNCTION]:
        if number in called and ops is None:
            return None
        if number in called:
            counts = OpCounts(**ops)
            before = found.get(name, counts)
            found[name] = max(counts, before, key=lambda each: each.low)
    if not found:
        return None
    columns = zip(*map(dataclasses.astuple, found.values()), strict=True)
    return OpCounts(*map(sum, columns))


def sample_from_dict(fields: Mapping[str, Any]) -> Sample:
    """Return the sample of which these are the fields."""
    seconds = fields["step_seconds"]
    if not all(is_number(each) and each > 0.0 for each in seconds):
        raise ValueError(f"steps that take {seconds!r} s")
    ops = fields["ops"]
    return Sample(
        **{
            **fields,
            "step_seconds": tuple(seconds),
            # JSON has no word for what is not finite.
            "values": tuple(math.nan if v is None else v for v in fields["values"]),
            "ops": None if ops is None else OpCounts(**ops),
        }
    )
