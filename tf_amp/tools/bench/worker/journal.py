"""What a process writes down while it runs, line by line, and how it is read back.

Lines are written at once, so that those of a process that is ended, or crashes, stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from tf_amp.compare.kept_file import is_number

# DT_HALF and DT_BFLOAT16 of TensorFlow's types.proto.
_LOW = frozenset({19, 14})
# More of one thing would tell nothing new, and a script may run for ever.
_MOST_LINES = 20_000
FUNCTION, CALL, STEP, VALUES = "function", "call", "step", "values"
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


def count_ops_of_graphs(graphs: Sequence[Any]) -> OpCounts:
    """Return the counts of GraphDefs, those of the functions they hold included."""
    functions = (each for graph in graphs for each in graph.library.function)
    nodes = (graph.node for graph in graphs)
    bodies = (function.node_def for function in functions)
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
    whole, _, _ = text.rpartition("\n")
    lines = map(_line_from, whole.splitlines())
    found = [line for line in lines if line is not None]
    if len(found) < len(whole.splitlines()):
        logging.warning("%s has lines that no journal has; they are left out", path)
    return found


def _line_from(text: str) -> list[Any] | None:
    """Return what a line says, or None if it makes no sense."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, list) and _makes_sense(line) else None


def _makes_sense(line: list[Any]) -> bool:
    match line:
        case ["call", int(), first, last]:
            return _are_times(first, last)
        case ["step", str(), first, last, int(count)]:
            return count > 0 and _are_times(first, last)
        case ["values", str(), list(values)]:
            return all(type(value) in (int, float) for value in values)
        case ["function", int(), str(), counts]:
            return counts is None or _are_counts(counts)
    return False


def _are_counts(counts: Any) -> bool:
    names = [field.name for field in dataclasses.fields(OpCounts)]
    is_such = isinstance(counts, dict) and list(counts) == names
    return is_such and all(type(count) is int for count in counts.values())


def _are_times(first: Any, last: Any) -> bool:
    return is_number(first) and is_number(last) and first <= last


def sampled_values(computed: Any) -> list[float]:
    """Return numbers spread evenly over each tensor of a structure, at most 256.

    What is not of a floating type, as counts and names, is left out.
    """
    floating = [each for each in leaves(computed) if _is_floating(each)][:_MOST_VALUES]
    found: list[float] = []
    for leaf in floating:
        flat = np.asarray(leaf).astype(np.float64).ravel()
        count = min(_MOST_VALUES // len(floating), flat.size)
        if count:
            places = np.linspace(0, flat.size - 1, count, dtype=int)
            found.extend(flat[places].tolist())
    return found


def leaves(structure: Any) -> Iterator[Any]:
    """Yield what is neither a mapping, whose keys are sorted, nor a sequence."""
    if isinstance(structure, Mapping):
        structure = [structure[name] for name in sorted(structure)]
    if not isinstance(structure, list | tuple):
        yield structure
        return
    for each in structure:
        yield from leaves(each)


def _is_floating(leaf: Any) -> bool:
    if isinstance(leaf, float):
        return True
    dtype = getattr(leaf, "dtype", None)
    name = str(getattr(dtype, "name", dtype))
    return name.startswith(_FLOATS) and hasattr(leaf, "__array__")
