"""Graphs by the name that people call them by, and by the number in their stamps.

TensorFlow calls the graph of a function as Python calls the function. That says nothing
of a lambda, nor of what Keras traces in `fit`, `evaluate` and `predict`, where each is
`one_step_on_data`. Which method or line it is shows where operations were made.

Grappler passes nodes that it has fused, without their attributes and under the name
of the last of them; what they were fused from is read from the graph as traced, which
is known by its number while it lives.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from grappler_pass.fork_safety import renewed_lock
from grappler_pass.graph.op_table import ROOTS
from tf_amp._tensorflow_private.tracing import TRACING_METHOD, outwards

SESSION = "graph of a Session"
# The function "step" is "__inference_step_12" when it is called.
_OF_TENSORFLOW = re.compile(r"^__(inference|forward)_|_\d+$")
# Of what Keras and tf_keras trace.
_OF_KERAS = re.compile(
    r"(one|multi)_step_on_(data|iterator)(_distributed)?|(train|test|predict)_function"
)
_KERAS_METHODS = {
    "fit": "training step of `fit`",
    "train_on_batch": "`train_on_batch`",
    "evaluate": "`evaluate`",
    "test_on_batch": "`test_on_batch`",
    "predict": "`predict`",
    "predict_on_batch": "`predict_on_batch`",
}
# Of `evaluate` within `fit`.
_VALIDATION = "validation step of `fit`"
# A lambda, a callable object, and what is made by `functools.partial`.
_UNNAMED = frozenset({"<lambda>", "function"})
_KERAS = re.compile(r"/(tf_)?keras/src/")
_LIBRARIES = re.compile(
    r"/site-packages/|/(?:tf_amp|grappler_pass)/|<__autograph|/__autograph_generated"
)
# A notebook has a file for each cell, whose name says nothing.
_CELLS, _CELL = re.compile(r"/ipykernel_"), "<cell>"
# Those of the arguments are made before the function is called.
_OPS_SEARCHED = 100


class ProgramLine(NamedTuple):
    """A line of the program that was under way."""

    filename: str
    lineno: int
    name: str


def name_of(graph: Any) -> str:
    """Return the name of a graph, as traced."""
    if not graph.building_function:
        return SESSION
    functions = (
        each
        for each in outwards(graph)
        if not getattr(each, "is_control_flow_graph", False)
    )
    function = next(functions, graph)

    def place(frames: list[ProgramLine]) -> str:
        """Return the line of the function that is traced, or of its call."""
        names = [frame.name for frame in frames]
        if TRACING_METHOD not in names:
            return ""
        begin = len(names) - names[::-1].index(TRACING_METHOD)
        return _line_of("function at", (*frames[begin:], *frames[:begin][::-1]))

    stacks = (
        [ProgramLine(f.filename, f.lineno, f.name) for f in op.traceback]
        for op in function.get_operations()[:_OPS_SEARCHED]
    )
    return _readable(function.name, stacks, place)


def name_of_call(function: str) -> str:
    """Return the name of a function of TensorFlow's runtime that is called here."""

    def here() -> Iterator[list[ProgramLine]]:
        frames = [
            ProgramLine(frame.f_code.co_filename, line, frame.f_code.co_name)
            for frame, line in traceback.walk_stack(None)
        ]
        yield frames[::-1]

    name = _OF_TENSORFLOW.sub("", function)
    return _readable(
        name, here(), lambda frames: _line_of("function called at", frames[::-1])
    )


def _readable(
    name: str,
    stacks: Iterator[list[ProgramLine]],
    place_in: Callable[[list[ProgramLine]], str],
) -> str:
    """Return a name that says where in the program something is.

    Args:
      name: as TensorFlow has it; returned where nothing is known that says more.
      stacks: the frames around some operations, outermost first; looked up where the
        name does not say enough.
      place_in: returns from these where a function is that has no name.
    """
    if _OF_KERAS.fullmatch(name):
        # The innermost method of a model that is under way.
        for frames in stacks:
            methods = [
                frame.name
                for frame in frames
                if frame.name in _KERAS_METHODS and _KERAS.search(frame.filename)
            ]
            if methods[-1:] == ["evaluate"] and "fit" in methods:
                return _VALIDATION
            if methods:
                return _KERAS_METHODS[methods[-1]]
        return name
    if name not in _UNNAMED:
        return name
    return next(filter(None, map(place_in, stacks)), name)


def _line_of(what: str, frames: Iterable[ProgramLine]) -> str:
    place = next((f for f in frames if not _LIBRARIES.search(f.filename)), None)
    if place is None:
        return ""
    is_cell = _CELLS.search(place.filename)
    file = _CELL if is_cell else os.path.basename(place.filename)
    return f"{what} {file}:{place.lineno}"


_NUMBER = "_tf_amp_number"
# Ops of all versions are fused into one.
_VERSION = re.compile(r"V\d+$")
# None stands for a longer chain than the one of the approximate gelu.
_LONGEST_CHAIN = 12

_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_counter = itertools.count(1)
# Another process' numbers, as a server meets them, must not be taken for ours.
_process = secrets.token_hex(3)
_lock = renewed_lock()


def number_of(graph: Any) -> str:
    """Return the number under which a graph is found again."""
    number: str | None = getattr(graph, _NUMBER, None)
    if number is None:
        with _lock:
            number = getattr(graph, _NUMBER, None) or f"{_process}-{next(_counter)}"
            setattr(graph, _NUMBER, number)
            _graphs[number] = graph
    return number


def graph_of(number: str | None) -> Any | None:
    """Return the numbered graph if it still exists."""
    return _graphs.get(number or "")


def op_named(graph: Any, name: str) -> Any | None:
    """Return an operation by its own name; None where the graph has none such."""
    try:
        return graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        return None


def inlined_op(graph: Any, name: str) -> Any | None:
    """Return an operation by its name behind the scopes that inlining has put there."""
    while (op := op_named(graph, name)) is None and "/" in name:
        name = name.partition("/")[2]
    return op


def ops_behind(last: Any, fused_op: str) -> tuple[Any, ...]:
    """Return the operations that a fused node stands for, given the last of them.

    Those on the nearest way from what it begins with; where there are two such ways,
    of both, since either may be the one.
    """
    root = ROOTS.get(fused_op)
    if root is None:
        return (last,)
    kind = _VERSION.sub("", root)
    paths: list[tuple[Any, ...]] = [(last,)]
    for _ in range(_LONGEST_CHAIN + 1):
        ended = [path for path in paths if path[-1].type.startswith(kind)]
        if ended:
            return tuple(dict.fromkeys(op for path in ended for op in path))
        del paths[_LONGEST_CHAIN:]
        paths = [(*path, t.op) for path in paths for t in path[-1].inputs]
    return (last,)
