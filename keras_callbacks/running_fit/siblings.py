"""Which callbacks take part in a run beside one of them.

Keras tells its callbacks nothing of one another. The list that calls them is found
among the callers; in a loop of the user's own without such a list there are none.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

# Between a callback and the list that calls it lie decorators, and lists in lists.
_FRAMES = 12
_METHODS = ("fit", "evaluate", "predict")


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """Where a callback stands in the list that calls it.

    Attributes:
      callback: it.
      caller: what calls it, with a list `callbacks`; None where there is none.
    """

    callback: Any
    caller: Any | None = None

    @property
    def others(self) -> tuple[Any, ...]:
        """All callbacks of the caller, this one among them."""
        return tuple(self.caller.callbacks) if self.caller is not None else ()

    @property
    def comes_later(self) -> bool:
        """Whether another callback of its class stands before it."""
        kind = type(self.callback)
        same = [each for each in self.others if type(each) is kind]
        return bool(same) and same[0] is not self.callback

    @property
    def is_repeated(self) -> bool:
        """Whether it is in the list more than once."""
        return sum(each is self.callback for each in self.others) > 1

    def go_first(self) -> None:
        """Be called before all others from the next event on, and once only.

        The caller may be going through its list right now, so it gets a new one.
        """
        if self.caller is None:
            return
        rest = [each for each in self.caller.callbacks if each is not self.callback]
        self.caller.callbacks = [self.callback, *rest]


def place_of(callback: Any) -> Place:
    """Return the place of a callback, called from one of its methods."""
    for frame in _outwards(sys._getframe(1)):
        caller = frame.f_locals.get("self")
        listed = getattr(caller, "callbacks", None)
        if isinstance(listed, list) and any(each is callback for each in listed):
            return Place(callback, caller)
    return Place(callback)


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
