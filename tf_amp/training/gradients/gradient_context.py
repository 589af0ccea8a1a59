"""Which call for gradients, and which vectorized loop, a thread is in the middle of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import wrapping
from tf_amp.tracing.bypass import holding
from tf_amp.training.finiteness import scale_at_run_time
from tf_amp.training.finiteness.votes import descends_from
from tf_amp.training.gradients.unscaling import ScaledCall


class Loop:
    """The body of a vectorized loop, whose gradients are checked after the loop.

    Attributes:
      call: that all gradients in the body are scaled by.
      finite: whether they are, one bool scalar for each time that some are taken.
      gradients: as the body sees them.
      tapes: that they were taken of.
      made_of_gradients: whether each result of the body is.
    """

    def __init__(self, call: ScaledCall) -> None:
        """Begin with no gradients taken."""
        self.call = call
        self.finite: list[Any] = []
        self.gradients: list[Any] = []
        self.tapes: list[Any] = []
        self.made_of_gradients: list[bool] = []

    def clear(self) -> None:
        """Forget what was taken in a body, which may be traced more than once."""
        self.finite.clear()
        self.gradients.clear()

    def note_results(self, results: Any) -> None:
        """Note which results of the body are made of gradients."""
        known = {gradient.ref() for gradient in self.gradients}
        self.made_of_gradients = [
            descends_from(
                tf.nest.flatten(result, expand_composites=True),
                lambda tensor: tensor.ref() in known,
            )
            for result in tf.nest.flatten(results)
        ]

    def split(self, results: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
        """Return the stacked results made of gradients, and what puts others there."""
        flat = tf.nest.flatten(results)
        places = [i for i, is_made in enumerate(self.made_of_gradients) if is_made]

        def put(instead: Sequence[Any]) -> Any:
            for i, result in zip(places, instead, strict=True):
                flat[i] = result
            return tf.nest.pack_sequence_as(results, flat)

        return [flat[i] for i in places], put


# Whether gradients are parts of those of a call, and of which, if that is known.
_at_work: ContextVar[tuple[bool, ScaledCall | None]] = ContextVar(
    "tf_amp_call_at_work", default=(False, None)
)
_loop: ContextVar[Loop | None] = ContextVar("tf_amp_loop_at_work", default=None)


def is_differentiating() -> bool:
    """Return whether the running code starts from gradients that are scaled already."""
    return _at_work.get()[0] or scale_at_run_time.is_differentiating()


def call_at_work() -> ScaledCall | None:
    """Return the call whose scaled gradients the running code computes, if any."""
    return _at_work.get()[1]


def loop_at_work() -> Loop | None:
    """Return the loop whose body is being traced, if any."""
    return _loop.get()


@contextlib.contextmanager
def differentiating(call: ScaledCall | None = None) -> Iterator[None]:
    """Leave gradients asked for inside alone, as parts of those of a call."""
    with holding(_at_work, (True, call)):
        yield


def computed(call: ScaledCall, compute: Callable[[], Any]) -> Any:
    """Compute the scaled gradients of a call."""
    with differentiating(call):
        # In the body of a vectorized loop nothing can be assigned.
        if _loop.get() is not None:
            return compute()
        return scale_at_run_time.computed_at(
            call.scale, compute, is_of_state=call.is_known_ahead
        )


def in_loop(loop: Loop) -> AbstractContextManager[None]:
    """Let gradients taken inside be those of a loop's body."""
    return holding(_loop, loop)


@wrapping
def passing_through_python(
    make: Callable[..., Any], func: Any, *args: Any, **kwargs: Any
) -> Any:
    """Make an operation of a Python function, with gradients left alone.

    The gradient of a `tf.py_function` asks a tape for gradients when it runs, on a
    thread of the runtime's: these start from scaled ones.
    """
    if kwargs.get("is_grad_func"):
        func = differentiating()(func)
    return make(func, *args, **kwargs)
