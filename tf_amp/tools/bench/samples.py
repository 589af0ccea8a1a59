"""What one process has measured, made of its journal and of how it ended.

Steps that were done count, whatever became of the program after them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from tf_amp.tools.bench.job import Run
from tf_amp.tools.bench.processes import Ended
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

Step = tuple[float, float, int]


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
    def seconds(self) -> float:
        """Median seconds of the later half of the steps.

        The earlier half holds what happens once: tracing, measuring, comparing.
        """
        return median(self.step_seconds[len(self.step_seconds) // 2 :])


def sample_of(
    run: Run, mode: str, lines: Sequence[Sequence[Any]], ended: Ended
) -> Sample:
    """Return what a process has measured.

    Args:
      run: that it was.
      mode: "train" or "infer": which of Keras' loops is looked at.
      lines: of its journal.
      ended: how it ended.
    """
    base = Sample(
        run.method,
        run.batch,
        run.round,
        peak_bytes=ended.peak_bytes,
        was_ended=ended.is_out_of_time,
        note=_note_in(ended.errors),
        warning=_warning_in(ended.errors),
    )
    source = _source_of(lines, mode)
    if len(source.steps) < FEWEST_STEPS:
        failure = ended.failure or _too_few(source, ended)
        return dataclasses.replace(base, failure=failure)
    seconds = [(end - begin) / count for begin, end, count in source.steps]
    half = source.steps[len(seconds) // 2][0]
    return dataclasses.replace(
        base,
        timed=source.title,
        step_seconds=_thinned(seconds),
        first_step_seconds=source.steps[0][1] - ended.begin,
        values=_values_of(lines, source.names),
        ops=_ops_between(lines, half, source.steps[-1][1]),
        failure=ended.failure and f"after the steps that count: {ended.failure}",
    )


@dataclasses.dataclass(frozen=True)
class _Source:
    """What is taken for the steps: in words, its names in the journal, its times."""

    title: str
    names: frozenset[str]
    steps: Sequence[Step]


def _source_of(lines: Sequence[Sequence[Any]], mode: str) -> _Source:
    """Return Keras' batches of the mode; else the calls of what is called most."""
    steps = defaultdict(list)
    for what, kind, *times in lines:
        if what == journal.STEP:
            steps[kind].append(tuple(times))
    if journal.OWN_KIND in steps:
        return _Source(
            "calls of the step", frozenset({journal.OWN_KIND}), steps[journal.OWN_KIND]
        )
    for kind in _KINDS[mode]:
        if kind in steps:
            title = f"batches of Keras' {_TITLES[kind]}"
            return _Source(title, frozenset({kind}), steps[kind])
    return _most_called(lines)


def _most_called(lines: Sequence[Sequence[Any]]) -> _Source:
    full_names = {n: name for what, n, name, *_ in _of(lines, journal.FUNCTION)}
    calls: dict[str, list[tuple[float, float]]] = defaultdict(list)
    names: dict[str, set[str]] = defaultdict(set)
    for _, number, begin, end in _of(lines, journal.CALL):
        full = full_names[number]
        short = _short_name(full)
        calls[short].append((begin, end))
        names[short].add(full)
    if not calls:
        return _Source("", frozenset(), ())
    most = max(calls, key=_count_and_seconds(calls))
    return _Source(f"calls of {most}", frozenset(names[most]), _steps_of(calls[most]))


def _of(lines: Iterable[Sequence[Any]], what: str) -> Iterable[Sequence[Any]]:
    return (line for line in lines if line[0] == what)


def _short_name(full: str) -> str:
    found = _NAME.match(full)
    return found[1] if found else full


def _count_and_seconds(
    calls: Mapping[str, Sequence[tuple[float, float]]],
) -> Callable[[str], tuple[int, float]]:
    return lambda name: (len(calls[name]), sum(e - b for b, e in calls[name]))


def _steps_of(calls: Sequence[tuple[float, float]]) -> list[Step]:
    """Return steps that last from the begin of a call to that of the next one."""
    ends = [begin for begin, _ in calls[1:]] + [calls[-1][1]]
    return [(begin, end, 1) for (begin, _), end in zip(calls, ends, strict=True)]


def _too_few(source: _Source, ended: Ended) -> str:
    within = " in its time" if ended.is_out_of_time else ""
    if not source.steps:
        return (
            f"no step was seen{within}: neither batches of Keras nor calls of a "
            "tf.function or runs of a Session"
        )
    return (
        f"{len(source.steps)} steps were seen{within} ({source.title}); needed are "
        f"{FEWEST_STEPS} or more"
    )


def _thinned(seconds: Sequence[float]) -> tuple[float, ...]:
    stride = max(-(-len(seconds) // _MOST_KEPT), 1)
    return tuple(float(f"{each:.6g}") for each in seconds[::stride])


def _values_of(
    lines: Sequence[Sequence[Any]], names: frozenset[str]
) -> tuple[float, ...]:
    found: list[float] = []
    for _, source, values in _of(lines, journal.VALUES):
        if source in names:
            found.extend(float(f"{each:.7g}") for each in values)
    return tuple(found)


def _ops_between(
    lines: Sequence[Sequence[Any]], begin: float, end: float
) -> OpCounts | None:
    """Return the operations of all functions that were called within a time.

    Of several instances of one, that with the most in 16 bits counts.
    """
    called = {n for _, n, at, _ in _of(lines, journal.CALL) if begin <= at <= end}
    found: dict[str, OpCounts] = {}
    for _, number, name, ops in _of(lines, journal.FUNCTION):
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


def _note_in(errors: str) -> str:
    found = (line for line in errors.splitlines() if line.startswith(_NOTE))
    return next(found, "").removeprefix(_NOTE)[:200]


def _warning_in(errors: str) -> str:
    found = _WARNING.search(errors)
    return found[0][:200] if found else ""


def sample_from_dict(fields: Mapping[str, Any]) -> Sample:
    """Return the sample of which these are the fields."""
    ops = fields["ops"]
    return Sample(
        **{
            **fields,
            "step_seconds": tuple(fields["step_seconds"]),
            # JSON has no word for what is not finite.
            "values": tuple(math.nan if v is None else v for v in fields["values"]),
            "ops": None if ops is None else OpCounts(**ops),
        }
    )
