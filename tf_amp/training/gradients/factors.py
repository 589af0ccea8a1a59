"""Numbers that a program multiplies losses by: a loss scale of its own, or a weight.

Before   S --> S * s --> ..., which overflows where S and s are scales of 2^15
After    S / p --> S * s / p --> ..., with p the power of two below s

The backward pass then holds what it holds without the product, give or take a factor
of two; what comes out is divided by S / p and stays multiplied by s, as the program
expects it. Powers of two round nothing, so that it need not be known whether the
program divides by s again: a weight makes gradients larger just as a scale does. One
below 1 is left.

In a graph all products on the way from a target to its loss are found, also of parts of
a sum, but not within functions that are called. For tensors outside of functions see
`first_products`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.annotations import OWN
from tf_amp._tensorflow_private.tracing import captured_from
from tf_amp.tracing.stack import keeping_float32
from tf_amp.training.finiteness.votes import descends_from
from tf_amp.training.loss_scale.weights import handles_of

# Why the arithmetic of a loss scale is in float32.
FOR_THE_SCALE = f"{OWN}the loss scale"

# What hands a gradient on, or shares it out evenly.
_PASSING_ON = frozenset(
    {
        "Cast",
        "CheckNumerics",
        "ExpandDims",
        "Identity",
        "Mean",
        "Neg",
        "Reshape",
        "Squeeze",
        "Sum",
    }
)
_SUMS = frozenset({"Add", "AddN", "AddV2", "Pack", "Sub"})
_QUOTIENTS = frozenset({"DivNoNan", "RealDiv"})
# Among the bits of a float32.
_EXPONENT = 0x7F800000
# What a loss scale is not divided beyond, which may be 0 soon after.
_SMALLEST = 2.0**-100
# That float32 holds.
_LARGEST = 2.0**127


def power_of_two_below(
    targets: Sequence[Any], seeds: Sequence[Any], sources: Any
) -> Any:
    """Return by how much less it takes to scale gradients, a power of two from 1 up.

    It is a float, or a float32 scalar where it is known only when the graph runs.

    Args:
      targets: whose gradients are taken, tensors and variables.
      seeds: what they start from, as the program gives it; None by default.
      sources: of which the gradients are, a structure.
    """
    factor_of = _factors(_is_made_of(sources))
    with keeping_float32(FOR_THE_SCALE):
        factors = [
            _product(factor_of(target), _number_given(seed))
            for target, seed in zip(targets, seeds, strict=True)
        ]
        return power_below(_largest(factors))


def scale_beside(power: Any, scale: Any) -> Any:
    """Return what is left of a loss scale beside a power of two, float32 scalar."""
    return scale / tf.minimum(power, tf.maximum(scale / _SMALLEST, 1.0))


def _factors(is_made_of_sources: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Return what returns the factor between a loss and a target: float or tensor."""
    known: dict[Any, Any] = {}

    def is_number(tensor: Any) -> bool:
        is_scalar = tensor.shape.rank == 0 and tensor.dtype.is_floating
        return is_scalar and not is_made_of_sources(tensor)

    @functools.cache
    def operands(target: Any) -> tuple[Any, list[Any]]:
        """Return a number, and what a target is the sum of when divided by it."""
        operation = target.deref().op
        kind, inputs = operation.type, list(operation.inputs)
        if kind in _PASSING_ON:
            return 1.0, inputs[:1]
        if kind in _SUMS:
            return 1.0, inputs
        if kind in _QUOTIENTS and _is_count(inputs[1]):
            # A mean, as Keras computes it.
            return 1.0, inputs[:1]
        if kind in _QUOTIENTS and is_number(inputs[1]):
            return _inverse(_value_of(inputs[1])), inputs[:1]
        if kind == "Mul":
            # A constant is no loss, which it takes longer to see of others.
            either_way = sorted(
                (inputs, inputs[::-1]), key=lambda pair: not _is_fixed(pair[0])
            )
            for number, other in either_way:
                if is_number(number):
                    return _value_of(number), [other]
        return 1.0, []

    def factor_of(target: Any) -> Any:
        if not isinstance(target, tf.Tensor) or hasattr(target, "numpy"):
            return 1.0
        waiting = [target.ref()]
        while waiting:
            number, parts = operands(waiting[-1])
            missing = [p.ref() for p in parts if p.ref() not in known]
            if missing:
                waiting.extend(missing)
                continue
            factors = [known[part.ref()] for part in parts]
            known[waiting.pop()] = _product(number, _largest(factors or [1.0]))
        return known[target.ref()]

    return factor_of


def _is_made_of(sources: Any) -> Callable[[Any], bool]:
    """Return what says whether a tensor depends on any of some tensors or variables."""
    flat = tf.nest.flatten(sources)
    tensors = [source for source in flat if isinstance(source, tf.Tensor)]
    variables = [source for source in flat if isinstance(source, tf.Variable)]
    references = [v.op.outputs[0] for v in variables if v.dtype != v.dtype.base_dtype]
    known = (*tensors, *references, *handles_of(flat).values())
    wanted = {tensor.ref() for tensor in known}

    def is_read_by(tensor: Any) -> bool:
        nearby = (tensor, *tensor.op.inputs)
        return any(captured_from(each).ref() in wanted for each in nearby)

    return lambda tensor: descends_from([tensor], is_read_by)


def _number_given(seed: Any) -> Any:
    """Return the number that gradients start from, if it is one."""
    if isinstance(seed, tf.Tensor):
        is_number = seed.shape.rank == 0 and seed.dtype.is_floating
        return _value_of(seed) if is_number else 1.0
    return abs(float(seed)) if isinstance(seed, (int, float)) else 1.0


def _value_of(number: Any) -> Any:
    """Return the size of a scalar: a float if that is known already."""
    known = tf.get_static_value(number)
    return tf.abs(tf.cast(number, tf.float32)) if known is None else abs(float(known))


def _is_count(tensor: Any) -> bool:
    """Return whether a number is a whole one, of examples for instance."""
    source = tensor.op
    return source.type == "Cast" and bool(source.inputs[0].dtype.is_integer)


def _inverse(size: Any) -> Any:
    return 1.0 if isinstance(size, float) and size == 0.0 else 1.0 / size


def _is_fixed(tensor: Any) -> bool:
    return tf.get_static_value(tensor) is not None


def _product(one: Any, other: Any) -> Any:
    return other if _is_one(one) else one if _is_one(other) else one * other


def _largest(factors: Sequence[Any]) -> Any:
    known = [factor for factor in factors if isinstance(factor, float)]
    others = [factor for factor in factors if not isinstance(factor, float)]
    if not others:
        return max(known)
    return functools.reduce(tf.maximum, others, *known and [max(known)])


def power_below(factor: Any) -> Any:
    """Return the largest power of two that is not larger than a factor, but from 1 up.

    Args:
      factor: a float, or a float32 scalar: so is what is returned.
    """
    if isinstance(factor, float):
        if not 1.0 < factor < math.inf:
            return 1.0
        return min(2.0 ** (math.frexp(factor)[1] - 1), _LARGEST)
    bits = tf.bitwise.bitwise_and(tf.bitcast(factor, tf.int32), _EXPONENT)
    power = tf.maximum(tf.bitcast(bits, tf.float32), 1.0)
    return tf.where(tf.math.is_finite(factor), power, 1.0)


def _is_one(factor: Any) -> bool:
    return isinstance(factor, float) and factor == 1.0
