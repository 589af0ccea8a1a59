"""What a process writes down while it runs, and the sample that is made of it.

Lines are written at once, so that those of a process that is ended, or crashes, stay:
steps that were done count, whatever became of the program after them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from absl import logging

from tf_amp.compare.kept_file import is_number
from tf_amp.message_codes import Code
from tf_amp.tools.bench.job import Run

# DT_HALF and DT_BFLOAT16 of TensorFlow's types.proto.
_LOW = frozenset({19, 14})
# More of one thing would tell nothing new, and a script may run for ever.
_MOST_LINES = 20_000
FUNCTION, CALL, STEP, VALUES = "function", "call", "step", "values"
MEMORY = "memory"
# Steps of each kind, or calls of each function, whose results are compared.
_COMPARED_STEPS = 4
# The kind of steps that are called here, and not by Keras.
OWN_KIND = "own"
# Of what a step computes, to compare with float32.
_MOST_VALUES = 256
_FLOATS = ("float", "bfloat")


@dataclasses.dataclass(frozen=True)
class OpCounts:
    """Operations of the graph that TensorFlow executed.

    `low` are those that compute in 16 bits, casts aside; `casts` those to or from 16
    bits; `onednn` those rewritten to kernels of oneDNN.
    """

    total: int
    low: int
    casts: int
    onednn: int


def count_ops_of_graphs(
    graphs: Iterable[Any], functions: Iterable[Any] = ()
) -> OpCounts:
    """Return the counts of GraphDefs and the functions they hold, and of others."""
    graphs = list(graphs)
    held = (each for graph in graphs for each in graph.library.function)
    bodies = (function.node_def for function in itertools.chain(held, functions))
    nodes = (graph.node for graph in graphs)
    return count_ops(itertools.chain.from_iterable(itertools.chain(nodes, bodies)))


def count_ops(nodes: Iterable[Any]) -> OpCounts:
    """Return how many operations compute in 16 bits, or cast to or from them."""
    ops = []
    for node in nodes:
        types = {each for a in node.attr.values() for each in (a.type, *a.list.type)}
        ops.append((node.op, not _LOW.isdisjoint(types)))
    return OpCounts(
        total=len(ops),
        low=sum(low for op, low in ops if op != "Cast"),
        casts=sum(low for op, low in ops if op == "Cast"),
        onednn=sum(op.startswith("_Mkl") for op, _ in ops),
    )


class Journal:
    """Writes lines of JSON; those of forked children are left out."""

    def __init__(self, path: pathlib.Path) -> None:
        """Begin a file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._owner = os.getpid()
        self._counts: Counter[tuple[str, object]] = Counter()
        self._numbers = itertools.count()
        self._looking_seconds = 0.0

    def now(self) -> float:
        """Return seconds of the machine's clock, less those spent on looking."""
        return time.monotonic() - self._looking_seconds

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Stop the clock while something is looked at that is no part of a step."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._looking_seconds += time.monotonic() - begin

    def function(self, name: str, counts: OpCounts | None) -> int:
        """Write what an instance of a function executes; None: that is unknown.

        Returned is the number that its calls are written by.
        """
        number = next(self._numbers)
        self._write(FUNCTION, number, name, counts and vars(counts))
        return number

    def call(self, number: int, begin: float, end: float) -> None:
        """Write when an instance of a function was called, in seconds of `now`."""
        # Most calls are within a step that is timed.
        with self.looking():
            self._write(CALL, number, begin, end)

    def step(self, kind: str, begin: float, end: float, count: int = 1) -> None:
        """Write when so many steps of a kind were done, in seconds of `now`."""
        self._write(STEP, kind, begin, end, count)

    def values(self, source: str, computed: Any) -> None:
        """Write numbers of what a kind of steps, or a function, has computed at first.

        The clock stands still meanwhile.
        """
        with self.looking():
            if self._counts[VALUES, source] < _COMPARED_STEPS:
                self._write(VALUES, source, sampled_values(computed))

    def memory(self, tensor_bytes: int) -> None:
        """Write how much the tensors of a device took at most."""
        self._write(MEMORY, tensor_bytes)

    def _write(self, what: str, source: object, *rest: object) -> None:
        if os.getpid() != self._owner:
            return
        self._counts[what, source] += 1
        if self._counts[what, source] <= _MOST_LINES:
            line = json.dumps([what, source, *rest]) + "\n"
            os.write(self._file, line.encode())


def lines_of(path: pathlib.Path) -> list[list[Any]]:
    """Return the lines of a journal; the last one may be torn, and is left out then.

    So are those that no journal has: a program may write to any file it finds.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    whole = text.rpartition("\n")[0].splitlines()
    lines = [line for each in whole if (line := _line_from(each)) is not None]
    if len(lines) < len(whole):
        logging.warning("%s has lines that no journal has; they are left out", path)
    return lines


def _line_from(text: str) -> list[Any] | None:
    """Return what a line says, or None if it makes no sense."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match line:
        case ["call", int(), float(begin), float(end)]:
            makes_sense = begin <= end < math.inf
        case ["step", str(), float(begin), float(end), int(count)]:
            makes_sense = begin <= end < math.inf and count > 0
        case ["values", str(), list(values)]:
            makes_sense = all(type(value) in (int, float) for value in values)
        case ["memory", int(count)]:
            makes_sense = count >= 0
        case ["function", int(), str(), None]:
            makes_sense = True
        case ["function", int(), str(), dict(counts)]:
            is_count = [type(count) is int for count in counts.values()]
            names = [field.name for field in dataclasses.fields(OpCounts)]
            makes_sense = list(counts) == names and all(is_count)
        case _:
            makes_sense = False
    return line if makes_sense else None


def sampled_values(computed: Any) -> list[float]:
    """Return numbers spread evenly over each tensor of a structure, at most 256.

    What is not of a floating type, as counts and names, is left out.
    """
    floating = []
    for leaf in leaves(computed):
        dtype = getattr(leaf, "dtype", None)
        name = str(getattr(dtype, "name", dtype))
        is_tensor = name.startswith(_FLOATS) and hasattr(leaf, "__array__")
        if is_tensor or isinstance(leaf, float):
            floating.append(leaf)
    numbers: list[float] = []
    for leaf in floating[:_MOST_VALUES]:
        flat = np.asarray(leaf).astype(np.float64).ravel()
        count = min(max(_MOST_VALUES // len(floating), 1), flat.size)
        if count:
            places = np.linspace(0, flat.size - 1, count, dtype=int)
            numbers.extend(flat[places].tolist())
    return numbers


def leaves(structure: Any) -> Iterator[Any]:
    """Yield what is neither a mapping, whose keys are sorted, nor a sequence."""
    if isinstance(structure, Mapping):
        structure = [structure[name] for name in sorted(structure)]
    if not isinstance(structure, list | tuple):
        yield structure
        return
    for each in structure:
        yield from leaves(each)


# Fewer steps are mostly the tracing, planning and filling of caches.
FEWEST_STEPS = 6
# That are kept; of more of them, so many at equal distances.
_MOST_KEPT = 2000
_KINDS = {"train": ("train",), "infer": ("predict", "test")}
_TITLES = {
    OWN_KIND: "calls of the step",
    "train": "batches of Keras' fit",
    "predict": "batches of Keras' predict",
    "test": "batches of Keras' evaluate",
}
# TensorFlow's names of functions are "__inference_step_123".
_NAME = re.compile(r"^(?:__inference_)?(.*?)(?:_\d+)?$")
_NOTE = "tf-amp: "
# Of the log of `tf_amp.rewriting.failures`.
_WARNING = re.compile(r"graph '.*' stays float32: .*")
_TRACEBACK = "Traceback (most recent call last):"
# Of Python, where an exception was not caught.
_EXCEPTION_STATUS = 1
_NO_STEP = "no step was seen"
# Characters of what is said in a line, and of each of two parts.
_LONGEST, _PART = 200, 95
_LONGEST_NOTE = 600
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
        said = lines[-1].strip() if lines else ""
        if self.status < 0:
            how = f"ended by {signal.Signals(-self.status).name}"
        else:
            how = f"exit status {self.status}"
        begins = [n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        if begins and self.status == _EXCEPTION_STATUS:
            # The first line of the last exception has its type. The frames before it
            # are indented, whatever follows in the message need not be.
            after = lines[begins[-1] + 1 :]
            error = next((e.strip() for e in after if not e[0].isspace()), said)
            if error != said:
                said = f"{error[:_PART]} ... {said[:_PART]}"
        said = said[:_LONGEST].rstrip(".")
        return f"{how}: {said}" if said else how

    @property
    def traceback(self) -> str:
        """The traceback of the exception that ended it; "" without one."""
        begin = self.errors.rfind(_TRACEBACK)
        is_uncaught = self.status == _EXCEPTION_STATUS and begin >= 0
        return self.errors[begin:][-_LONGEST_TRACEBACK:] if is_uncaught else ""


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
      values: a few numbers of its first steps; None for what is not finite.
      ops: of the graphs that its timed steps executed; None: they could not be seen.
      failure: how it ended, if not well, or why there is nothing else; "" otherwise.
      traceback: of the exception that ended it before enough steps; "" without one.
      was_ended: whether it was still running when its time was over.
      note: what tf-amp said on stderr, its first line.
      compared: what it said there of steps that ran both ways.
      warning: what its log says there of a graph that it failed to rewrite.
    """

    method: str
    batch: int | None
    round: int
    timed: str = ""
    step_seconds: tuple[float, ...] = ()
    first_step_seconds: float | None = None
    peak_bytes: int = 0
    values: tuple[float | None, ...] = ()
    ops: OpCounts | None = None
    failure: str = ""
    traceback: str = ""
    was_ended: bool = False
    note: str = ""
    compared: str = ""
    warning: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError where a step takes what is no time."""
        if not all(is_number(each) and each > 0.0 for each in self.step_seconds):
            raise ValueError(f"steps that take {self.step_seconds!r} s")

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


def _first(noted: Sequence[str]) -> str:
    return noted[0].removeprefix(_NOTE)[:_LONGEST_NOTE] if noted else ""


def sample_of(
    run: Run, mode: str, lines: Sequence[Sequence[Any]], ended: Ended
) -> Sample:
    """Return what a process has measured, by its journal and how it ended.

    The mode, "train" or "infer", says which of Keras' loops is looked at.
    """
    noted = [each for each in ended.errors.splitlines() if each.startswith(_NOTE)]
    compared = [each for each in noted if each.endswith(Code.COMPARED.ends(""))]
    warned = _WARNING.search(ended.errors)
    base = Sample(
        run.method,
        run.batch,
        run.round,
        peak_bytes=ended.peak_bytes,
        was_ended=ended.is_out_of_time,
        note=_first(noted),
        compared=_first(compared),
        warning=warned[0][:200] if warned else "",
    )
    seen: Seen = defaultdict(list)
    for what, *rest in lines:
        seen[what].append(rest)
    source = _source_of(seen, mode)
    if len(source.steps) < FEWEST_STEPS:
        within = " in its time" if ended.is_out_of_time else ""
        too_few = (
            f"{len(source.steps)} steps were seen{within} ({source.title}); needed are "
            f"{FEWEST_STEPS} or more"
            if source.steps
            else f"{_NO_STEP}{within}: neither batches of Keras nor calls of a "
            "tf.function or runs of a Session"
        )
        failure = ended.failure or too_few
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
            float(f"{each:.7g}") if math.isfinite(each) else None
            for name, values in seen[VALUES]
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
    """Return Keras' batches of the mode; else the calls of what is called most.

    Of functions that are called as often, that which takes longest counts.
    """
    steps = defaultdict(list)
    for kind, *times in seen[STEP]:
        steps[kind].append(tuple(times))
    for kind in (OWN_KIND, *_KINDS[mode]):
        if kind in steps:
            return _Source(_TITLES[kind], frozenset({kind}), steps[kind])
    calls: dict[str, list[tuple[float, float]]] = defaultdict(list)
    names: dict[str, set[str]] = defaultdict(set)
    full_names = {number: name for number, name, _ in seen[FUNCTION]}
    for number, begin, end in seen[CALL]:
        if number in full_names:
            short = _NAME.sub(r"\1", full_names[number])
            calls[short].append((begin, end))
            names[short].add(full_names[number])
    if not calls:
        return _Source("", frozenset(), ())
    most = max(calls, key=lambda n: (len(calls[n]), sum(e - b for b, e in calls[n])))
    # A step lasts from the begin of a call to that of the next one.
    bounds = [*(begin for begin, _ in calls[most]), calls[most][-1][1]]
    timed = [(begin, end, 1) for begin, end in itertools.pairwise(bounds)]
    return _Source(f"calls of {most}", frozenset(names[most]), timed)


def _ops_between(seen: Seen, begin: float, end: float) -> OpCounts | None:
    """Return the operations of all functions that were called within a time.

    Of several instances of one, that with the most in 16 bits counts.
    """
    called = {n for n, at, _ in seen[CALL] if begin <= at <= end}
    by_name: dict[str, OpCounts] = {}
    for number, name, ops in seen[FUNCTION]:
        if number in called:
            if ops is None:
                return None
            counts = OpCounts(**ops)
            by_name[name] = max(counts, by_name.get(name, counts), key=lambda c: c.low)
    columns = zip(*map(dataclasses.astuple, by_name.values()), strict=True)
    return OpCounts(*map(sum, columns)) if by_name else None
