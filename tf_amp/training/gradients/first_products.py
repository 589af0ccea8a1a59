"""The number that a target outside of functions was multiplied by: see `factors`.

Eager tensors do not show what they were made from. But a tape goes back through the
operation that made its target first, and all gradients through it: where that is a
product with a number, they go on from there scaled by less.

Not done: for several targets at once, and for products before the last operation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import tracing, wrapping
from tf_amp.tracing.bypass import holding
from tf_amp.training.finiteness import scale_at_run_time
from tf_amp.training.gradients.factors import power_below, scale_beside
from tf_amp.training.loss_scale.weights import handles_of, shape_of

_KINDS = ("DivNoNan", "Mul", "RealDiv")


@dataclasses.dataclass(eq=False)
class FirstProduct:
    """What a tape finds in the first operation that it goes back through.

    Attributes:
      tape: the tape.
      targets: whose gradients are taken.
      sources: of which it is, a structure.
      scale: of the loss, float32 scalar.
      power: of two, by which gradients are scaled less behind the operation.
    """

    tape: Any
    targets: Sequence[Any]
    sources: Any
    scale: Any
    power: float = 1.0
    _is_over: bool = False

    def gradient_function(self, kind: str, function: Any) -> Any:
        """Return what differentiates an operation in the place of a function."""
        is_first, self._is_over = not self._is_over, True
        is_product = kind in _KINDS and len(self.targets) == 1
        # A function's own gradient may be traced before anything else is done.
        if not is_first or not is_product or not tf.executing_eagerly():
            return function
        return functools.partial(self._differentiate, function)

    def _differentiate(self, function: Callable[..., Any], op: Any, given: Any) -> Any:
        number = self._number_in(op)
        self.power = 1.0 if number is None else power_below(number)
        if self.power == 1.0:
            return function(op, given)
        share = scale_beside(self.power, self.scale) / self.scale
        scale_at_run_time.multiply(share)
        return function(op, given * tf.cast(share, given.dtype))

    def _number_in(self, op: Any) -> float | None:
        """Return the size of what the operation multiplies by, if that is a number.

        An operation that a program has told the tape of by itself is not seen, but
        what is behind it, which then has another value than the target.
        """
        one, other = op.inputs
        if one is None or other is None:
            return None
        is_product = op.type == "Mul"
        made = one * other if is_product else one / other
        if not bool(tf.reduce_all(tf.equal(made, self.targets[0]))):
            return None
        without = op.skip_input_indices or ()
        for place in (1, 0) if is_product else (1,):
            if self._is_number(op.inputs[place], place in without):
                size = abs(float(op.inputs[place]))
                return size if is_product or size == 0.0 else 1.0 / size
        return None

    def _is_number(self, factor: Any, has_no_gradient: bool) -> bool:
        if factor.shape.rank != 0 or not factor.dtype.is_floating:
            return False
        return has_no_gradient or self._holds_number(float(factor))

    def _holds_number(self, value: float) -> bool:
        """Return whether a variable that the tape follows for nothing has a value."""
        wanted = handles_of(tf.nest.flatten(self.sources))
        followed = handles_of(self.tape.watched_variables())
        others = [followed[key] for key in followed.keys() - wanted.keys()]
        scalars = [handle for handle in others if shape_of(handle) == ()]
        return any(value == _value_behind(handle) for handle in scalars)


def _value_behind(handle: Any) -> float:
    contents = tracing.handle_contents(handle)[0]
    return float(tracing.variable_value(handle, contents))


_sought: ContextVar[FirstProduct | None] = ContextVar(
    "tf_amp_first_product", default=None
)


@contextlib.contextmanager
def sought(product: FirstProduct) -> Iterator[None]:
    """Look at what a tape goes back through first; in graphs nothing is looked for."""
    with holding(_sought, product if tf.executing_eagerly() else None):
        yield


@wrapping
def passing_on(lookup: Callable[..., Any], registry: Any, name: str) -> Any:
    """Look a gradient function up; take a number out of what the first one is given."""
    found, product = lookup(registry, name), _sought.get()
    return found if product is None else product.gradient_function(name, found)
