"""What people call a graph, for everything that they read of it.

TensorFlow calls the graph of a function as Python calls the function. That says nothing
of a lambda, nor of what Keras traces in `fit`, `evaluate` and `predict`, where each is
`one_step_on_data`. Which method or line it is shows where operations were made.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

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
# A lambda, a callable object, and what is made by `functools.partial`.
_UNNAMED = frozenset({"<lambda>", "function"})
_KERAS = re.compile(r"/(tf_)?keras/src/")
_LIBRARIES = re.compile(r"/site-packages/|/tf_amp/|<__autograph|/__autograph_generated")
# Prompts and notebooks.
_TYPED_IN = re.compile(r"^<|/ipykernel_")
# Those of the arguments are made before the function is called.
_OPS_SEARCHED = 100


class Frame(NamedTuple):
    """A line of the program that was under way."""

    filename: str
    lineno: int
    name: str


def name_of(graph: Any) -> str:
    """Return the name of a graph, as traced."""
    if not graph.building_function:
        return SESSION
    function = next((g for g in outwards(graph) if not _is_branch(g)), graph)
    return _readable(function.name, lambda: _frames_in(function), _place)


def name_of_call(function: str) -> str:
    """Return the name of a function of TensorFlow's runtime that is called here."""
    return _readable(_OF_TENSORFLOW.sub("", function), lambda: [_frames_here()], _call)


def _readable(
    name: str,
    stacks: Callable[[], Iterable[list[Frame]]],
    place_in: Callable[[list[Frame]], str],
) -> str:
    """Return a name that says where in the program something is.

    Args:
      name: as TensorFlow has it; returned where nothing is known that says more.
      stacks: returns the frames around some operations, outermost first.
      place_in: returns from these where a function is that has no name.
    """
    find = _keras_method if _OF_KERAS.fullmatch(name) else place_in
    if find is place_in and name not in _UNNAMED:
        return name
    return next(filter(None, map(find, stacks())), name)


def _is_branch(graph: Any) -> bool:
    return bool(getattr(graph, "is_control_flow_graph", False))


def _frames_in(graph: Any) -> Iterator[list[Frame]]:
    for op in graph.get_operations()[:_OPS_SEARCHED]:
        yield [Frame(f.filename, f.lineno, f.name) for f in op.traceback]


def _frames_here() -> list[Frame]:
    frames = [
        Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_stack(None)
    ]
    return frames[::-1]


def _keras_method(frames: list[Frame]) -> str:
    """Return the innermost method of a model that is under way."""
    methods = (f.name for f in frames if _KERAS.search(f.filename))
    found = [name for name in methods if name in _KERAS_METHODS]
    return _KERAS_METHODS[found[-1]] if found else ""


def _place(frames: list[Frame]) -> str:
    """Return the line of the function that is traced, or of its call."""
    names = [frame.name for frame in frames]
    if TRACING_METHOD not in names:
        return ""
    begin = len(names) - names[::-1].index(TRACING_METHOD)
    return _line_of("function at", (*frames[begin:], *frames[:begin][::-1]))


def _call(frames: list[Frame]) -> str:
    """Return the line of the program that is under way."""
    return _line_of("function called at", frames[::-1])


def _line_of(what: str, frames: Iterable[Frame]) -> str:
    place = next((f for f in frames if not _LIBRARIES.search(f.filename)), None)
    if place is None:
        return ""
    if _TYPED_IN.search(place.filename):
        return f"{what} line {place.lineno}"
    return f"{what} {os.path.basename(place.filename)}:{place.lineno}"
