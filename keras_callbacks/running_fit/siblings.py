"""Which callbacks take part in a run beside one of them.

Keras tells its callbacks nothing of one another. The list that calls them is found
among the callers; in a loop of the user's own without such a list there are none.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

# Between a callback and the list that calls it lie decorators, and lists in lists.
_FRAMES = 12
_METHODS = ("fit", "evaluate", "predict")


def caller_of(callback: Any) -> Any | None:
    """Return what calls a callback, with a list `callbacks`; None where none does.

    To be called from one of the callback's methods.
    """
    for frame in _outwards(sys._getframe(1)):
        caller = frame.f_locals.get("self")
        listed = getattr(caller, "callbacks", None)
        if isinstance(listed, list) and any(each is callback for each in listed):
            return caller
    return None


def beside(callback: Any) -> tuple[Any, ...]:
    """Return all callbacks of the same caller, this one among them."""
    return tuple(getattr(caller_of(callback), "callbacks", ()))


def running_method(model: Any) -> str:
    """Return which of `fit`, `evaluate` and `predict` of a model has called this."""
    for frame in _outwards(sys._getframe(1)):
        if frame.f_code.co_name in _METHODS and frame.f_locals.get("self") is model:
            return frame.f_code.co_name
    return ""


def _outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    for _ in range(_FRAMES):
        if frame is not None:
            yield frame
            frame = frame.f_back


def first_of(callbacks: Iterable[Any], kind: str) -> Any | None:
    """Return the first callback whose class, or a base of it, has this name."""
    for callback in callbacks:
        if any(base.__name__ == kind for base in type(callback).__mro__):
            return callback
    return None
