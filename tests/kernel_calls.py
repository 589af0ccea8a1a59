"""Kernels of TensorFlow with shapes and attributes: as lines of text, and called."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

Shape = tuple[int, ...]

_LINE = re.compile(r"(\w+)\((.*)\)((?: > \w+)*) \[(\w+)\]")


@dataclasses.dataclass(frozen=True)
class KernelCase:
    """An op of tf.raw_ops, or of `COMPOSITES`, and what it is called with.

    Attributes:
      op: its name.
      operands: name and shape of each, those of the steps behind it included.
      attributes: the other arguments, by name.
      then: steps behind it, of `STEPS`, for TensorFlow to fuse.
      mode: eager, fused (in a tf.function) or xla.
    """

    op: str
    operands: tuple[tuple[str, Shape], ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    then: tuple[str, ...] = ()
    mode: str = "eager"

    def __str__(self) -> str:
        """Return the line that `parsed` reads."""
        operands = [f"{name}:{_joined(shape)}" for name, shape in self.operands]
        attributes = [f"{n}={v!r}".replace(" ", "") for n, v in self.attributes]
        steps = "".join(f" > {step}" for step in self.then)
        return f"{self.op}({', '.join(operands + attributes)}){steps} [{self.mode}]"


def parsed(line: str) -> KernelCase:
    """Return the case that prints as `line`."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"{line!r} is no case; one looks like {_EXAMPLE}")
    op, arguments, steps, mode = match.groups()
    operands: list[tuple[str, Shape]] = []
    attributes: list[tuple[str, Any]] = []
    for argument in arguments.split(", "):
        name, sign, value = re.split("([:=])", argument, maxsplit=1)
        if sign == ":":
            operands.append((name, tuple(int(n) for n in value.split("x") if n)))
        else:
            attributes.append((name, ast.literal_eval(value)))
    then = tuple(step for step in steps.split(" > ") if step)
    return KernelCase(op, tuple(operands), tuple(attributes), then, mode)


def _joined(shape: Shape) -> str:
    """Return 2x3 for (2, 3), and nothing for a scalar's."""
    return "x".join(map(str, shape))


_EXAMPLE = str(KernelCase("Relu", (("features", (2, 3)),), then=("Tanh",)))


Operands = Mapping[str, Any]
Results = Callable[[KernelCase, Operands], list[tf.Tensor]]


def _layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Write a layer normalization as Keras does."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    inverse = tf.math.rsqrt(variance + tf.cast(1e-3, x.dtype)) * scale
    return x * inverse + (offset - mean * inverse)


def _padded_conv(
    x: tf.Tensor, w: tf.Tensor, strides: list[int], paddings: list[list[int]]
) -> tf.Tensor:
    """Pad, then convolve: TensorFlow fuses these two."""
    return tf.nn.conv2d(tf.pad(x, paddings), w, strides, "VALID")


def _segment_sum(data: tf.Tensor, lengths: list[int]) -> tf.Tensor:
    """Sum rows, so many each."""
    ids = np.repeat(np.arange(len(lengths)), lengths)
    return tf.math.unsorted_segment_sum(data, ids, len(lengths))


COMPOSITES: dict[str, Callable[..., tf.Tensor]] = {
    "layer_norm": _layer_norm,
    "padded_conv": _padded_conv,
    "swish": lambda x: x * tf.sigmoid(x),
    "segment_sum": _segment_sum,
}

# Each step gets the value, and the operand that is named with it, if any.
STEPS: dict[str, tuple[Callable[..., tf.Tensor], str | None]] = {
    "BiasAdd": (lambda v, bias: tf.nn.bias_add(v, bias), "bias"),
    "Add": (lambda v, other: v + other, "other"),
    "Mul": (lambda v, factor: v * factor, "factor"),
    "Relu": (tf.nn.relu, None),
    "Relu6": (tf.nn.relu6, None),
    "Elu": (tf.nn.elu, None),
    "LeakyRelu": (lambda v: tf.nn.leaky_relu(v, 0.2), None),
    "LeakyRelu8th": (lambda v: tf.nn.leaky_relu(v, 0.125), None),
    "Tanh": (tf.tanh, None),
    "Sigmoid": (tf.sigmoid, None),
    "GeluTanh": (lambda v: tf.nn.gelu(v, approximate=True), None),
    "GeluErf": (lambda v: tf.nn.gelu(v, approximate=False), None),
}

# Ops whose operands go into one list.
LISTS = {"Einsum": "inputs", "AddN": "inputs"}
# Operands that stay float32.
FLOAT32 = {
    "FusedBatchNormV3": {"scale", "offset", "mean", "variance"},
    "FusedBatchNormGradV3": {
        *("scale", "reserve_space_1", "reserve_space_2", "reserve_space_3"),
    },
}
# Operands that no sound program has negative or zero.
POSITIVE = {"variance", "reserve_space_2", "divisor"}
# How many results count; the others are scratch.
_RESULTS = {"FusedBatchNormV3": 3, "FusedBatchNormGradV3": 3}


def operands_of(case: KernelCase, draw: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Return float32 operands that 16 bits hold: "integers" in -2..2, or "ones"."""
    random = np.random.default_rng(seed)
    operands = {}
    for name, shape in case.operands:
        if draw == "ones":
            value = np.ones(shape)
        else:
            value = random.integers(-2, 3, shape)
        if name in POSITIVE:
            value = np.abs(value) + 1
        operands[name] = np.asarray(value, np.float32)
    return operands


def cast(case: KernelCase, operands: Operands, dtype: str) -> dict[str, tf.Tensor]:
    """Return the operands in `dtype`, but for those that are float32 always."""
    kept = FLOAT32.get(case.op, set()) if dtype != "float64" else set()
    return {
        name: tf.cast(value, "float32" if name in kept else dtype)
        for name, value in operands.items()
    }


def values(
    case: KernelCase, operands: Operands, results: Results | None = None
) -> list[list[tf.Tensor]]:
    """Run the op by `results`, and its steps; return the values after each."""
    step_operands = {STEPS[step][1] for step in case.then}
    inputs = {n: v for n, v in operands.items() if n not in step_operands}
    after = [(results or results_of_op)(case, inputs)]
    for step in case.then:
        call, name = STEPS[step]
        extra = () if name is None else (operands[name],)
        after.append([call(after[-1][0], *extra)])
    return after


def results_of_op(case: KernelCase, inputs: Operands) -> list[tf.Tensor]:
    attributes = dict(case.attributes)
    if case.op in COMPOSITES:
        return [COMPOSITES[case.op](**inputs, **attributes)]
    if case.op in LISTS:
        inputs = {LISTS[case.op]: list(inputs.values())}
    results = getattr(tf.raw_ops, case.op)(**inputs, **attributes)
    if isinstance(results, tf.Tensor):
        return [results]
    return list(results)[: _RESULTS.get(case.op)]


def runner(case: KernelCase) -> Callable[[Operands], list[tf.Tensor]]:
    """Return what runs the case in its mode and returns its results."""

    def last(operands: Operands) -> list[tf.Tensor]:
        return values(case, operands)[-1]

    if case.mode == "eager":
        return last
    return tf.function(last, jit_compile=case.mode == "xla", autograph=False)
