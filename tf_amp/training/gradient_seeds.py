"""What gradients start from, and the numbers that the program multiplies losses by.

Such a number is a loss scale of the program's own, or a weight:

Before   S --> S * s --> ..., which overflows where S and s are scales of 2^15
After    S / p --> S * s / p --> ..., with p the power of two below s

The backward pass then holds what it holds without the product, give or take a factor
of two; what comes out is divided by S / p and stays multiplied by s, as the program
expects it. Powers of two round nothing, so that it need not be known whether the
program divides by s again: a weight makes gradients larger just as a scale does. One
below 1 is left.

In a graph all products on the way from a target to its loss are found, also of parts of
a sum, but not within functions that are called. Eager tensors do not show what they
were made from. But a tape goes back through the operation that made its target first,
and all gradients through it: where that is a product with a number, they go on from
there scaled by less.

Not done: outside of functions, for several targets at once, and for products before the
last operation.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from grappler_pass.annotations import OWN
from tf_amp._tensorflow_private import tracing, wrapping
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import captured_from
from tf_amp.message_codes import Code
from tf_amp.tracing.stack import holding, keeping_float32
from tf_amp.training import scale_at_run_time
from tf_amp.training.finite_flags import descends_from
from tf_amp.training.scale_state import handles_of, shape_of


def targets_and_seeds(target: Any, seeds: Any) -> tuple[list[Any], list[Any]]:
    """Return flat targets, and what is given to start from, None where nothing is.

    Composite targets are split as TensorFlow does; variables stay what they are.
    """
    targets = private.differentiated_parts(tf.nest.flatten(target))
    if seeds is None:
        return targets, [None] * len(targets)
    return targets, private.differentiated_parts(tf.nest.flatten(seeds))


def with_ones(
    targets: Sequence[Any], given: Sequence[Any], starts_at_one: Callable[[Any], bool]
) -> list[Any]:
    """Fill in the ones that gradients start from by default.

    What has no default is left to TensorFlow, with its warnings and errors.
    """
    seeds = []
    for target, seed in zip(targets, given, strict=True):
        if isinstance(seed, tf.IndexedSlices):
            seeds.append(seed)
        elif seed is not None:
            seeds.append(tf.convert_to_tensor(seed, dtype_of(target)))
        elif starts_at_one(target):
            # Those of a watched target would be watched, too.
            seeds.append(tf.stop_gradient(tf.ones_like(target)))
        else:
            seeds.append(None)
    return seeds


def dtype_of(target: Any) -> Any:
    """Return the type of a tensor or variable, of Keras' own too."""
    return tf.as_dtype(target.dtype).base_dtype


def has_gradient(target: Any) -> bool:
    """Say whether a target is a tensor or variable that a loss scale can multiply."""
    if not isinstance(target, tf.Tensor) and not _is_variable(target):
        return False
    return bool(dtype_of(target).is_floating or dtype_of(target).is_complex)


def is_number(target: Any) -> bool:
    """Return whether a tape starts from ones of a target, as of whole numbers too."""
    if has_gradient(target):
        return True
    return isinstance(target, tf.Tensor) and target.dtype.is_integer


def is_real(target: Any) -> bool:
    """Return whether a target has gradients that are not complex."""
    return has_gradient(target) and bool(dtype_of(target).is_floating)


# Types of tensors that stand for something else.
_HANDLES = (tf.resource, tf.variant)


def are_known(targets: Sequence[Any]) -> bool:
    """Return whether it is known what all targets start from; if not, say it once."""
    unknown = [
        target
        for target in targets
        if not _is_variable(target)
        and not (isinstance(target, tf.Tensor) and target.dtype not in _HANDLES)
    ]
    if unknown:
        Code.NOT_SCALED.warn_once(
            "Losses are not scaled, and gradients not checked, where gradients are "
            "taken of %r: give tf.Tensors or tf.Variables to start from.",
            unknown[0],
        )
    return not unknown


def _is_variable(target: Any) -> bool:
    # Those of Keras and of strategies are no tf.Variable.
    return isinstance(target, tf.Variable) or hasattr(target, "handle")


# Why the arithmetic of a loss scale is in float32.
FOR_THE_SCALE = f"{OWN}the loss scale"

# What hands a gradient on, or shares it out evenly.
_PASSING_ON = frozenset(
    "Cast CheckNumerics ExpandDims Identity Mean Neg Reshape Squeeze Sum".split()
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

    def number_given(seed: Any) -> Any:
        if isinstance(seed, tf.Tensor):
            is_number = seed.shape.rank == 0 and seed.dtype.is_floating
            return _size_of(seed) if is_number else 1.0
        return abs(float(seed)) if isinstance(seed, (int, float)) else 1.0

    with keeping_float32(FOR_THE_SCALE):
        factors = [
            _product(factor_of(target), number_given(seed))
            for target, seed in zip(targets, seeds, strict=True)
        ]
        return power_below(_largest(factors))


def scale_beside(power: Any, scale: Any) -> Any:
    """Return a loss scale divided by a power of two, float32 scalar."""
    return scale / tf.minimum(power, tf.maximum(scale / _SMALLEST, 1.0))


def _factors(is_made_of_sources: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Return a function of a target: its factor before a loss, float or tensor."""
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
        if kind in _QUOTIENTS:
            source = inputs[1].op
            if source.type == "Cast" and source.inputs[0].dtype.is_integer:
                # A mean, as Keras computes it, over a whole number of examples.
                return 1.0, inputs[:1]
            if is_number(inputs[1]):
                size = _size_of(inputs[1])
                is_zero = isinstance(size, float) and size == 0.0
                return 1.0 if is_zero else 1.0 / size, inputs[:1]
        if kind == "Mul":
            # A constant is no loss, which it takes longer to see of others.
            either_way = sorted(
                (inputs, inputs[::-1]),
                key=lambda pair: tf.get_static_value(pair[0]) is None,
            )
            for number, other in either_way:
                if is_number(number):
                    return _size_of(number), [other]
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
    """Return a function of a tensor: whether it depends on any of some sources."""
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


def _size_of(number: Any) -> Any:
    """Return the size of a scalar: a float if that is known already."""
    known = tf.get_static_value(number)
    return tf.abs(tf.cast(number, tf.float32)) if known is None else abs(float(known))


def _product(one: Any, other: Any) -> Any:
    if isinstance(one, float) and one == 1.0:
        return other
    return one if isinstance(other, float) and other == 1.0 else one * other


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
        """Return the gradient function of an operation, in the place of a given one."""
        is_first, self._is_over = not self._is_over, True
        is_product = kind in _KINDS and len(self.targets) == 1
        # A function's own gradient may be traced before anything else is done.
        if not is_first or not is_product or not tf.executing_eagerly():
            return function

        def differentiate(op: Any, given: Any) -> Any:
            number = self._number_in(op)
            self.power = 1.0 if number is None else power_below(number)
            if self.power == 1.0:
                return function(op, given)
            share = scale_beside(self.power, self.scale) / self.scale
            scale_at_run_time.multiply(share)
            return function(op, given * tf.cast(share, given.dtype))

        return differentiate

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
            factor = op.inputs[place]
            if factor.shape.rank != 0 or not factor.dtype.is_floating:
                continue
            if place in without or float(factor) in self._numbers_held():
                size = abs(float(factor))
                return size if is_product or size == 0.0 else 1.0 / size
        return None

    def _numbers_held(self) -> Iterator[float]:
        """Yield the values of scalar variables that the tape follows for nothing."""
        wanted = handles_of(tf.nest.flatten(self.sources))
        followed = handles_of(self.tape.watched_variables())
        for key in followed.keys() - wanted.keys():
            if shape_of(followed[key]) == ():
                contents = tracing.handle_contents(followed[key])[0]
                yield float(tracing.variable_value(followed[key], contents))


_sought: ContextVar[FirstProduct | None] = ContextVar(
    "tf_amp_first_product", default=None
)


def sought(product: FirstProduct) -> AbstractContextManager[None]:
    """Look at what a tape goes back through first; in graphs nothing is looked for."""
    return holding(_sought, product if tf.executing_eagerly() else None)


@wrapping
def passing_on(lookup: Callable[..., Any], registry: Any, name: str) -> Any:
    """Look a gradient function up; take a number out of what the first one is given."""
    found, product = lookup(registry, name), _sought.get()
    return found if product is None else product.gradient_function(name, found)
