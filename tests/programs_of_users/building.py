"""What a program of a user is, and how it becomes one whose values are drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.placing import KIND, placed
from tests.programs import (
    Program,
    control_flow,
    program_from_function,
    program_from_graph,
)
from tests.recipe_builder import Draw, Sample
from tests.recipes import Dish
from tests.scaling import scaled_by
from tf_amp import NoOpLossScale, StaticLossScale

# A power of two, small enough that no gradient overflows by it alone.
_FLOAT16_SCALE = 1024.0


@dataclasses.dataclass(frozen=True)
class UserProgram:
    """A step as its author wrote it.

    Attributes:
      step: a function of tensors, traced with autograph.
      inputs: how each of its arguments is drawn.
      steps: how often it is called.
      iterations: how often its longest loop runs.
      in_v1_graph: whether it is traced in a graph of version 1, with loops of frames.
    """

    step: Callable[..., Any]
    inputs: tuple[Draw, ...]
    steps: int = 1
    iterations: int = 1
    in_v1_graph: bool = False


def normal(*shape: int, scale: float = 1.0, offset: float = 0.0) -> Draw:
    """Draw normal numbers."""
    return lambda rng: (rng.normal(size=shape) * scale + offset).astype(np.float32)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Draw:
    """Draw numbers between two bounds."""
    return lambda rng: rng.uniform(low, high, shape).astype(np.float32)


def ids(*shape: int, below: int, least: int = 0) -> Draw:
    """Draw whole numbers."""
    return lambda rng: rng.integers(least, below, shape, dtype=np.int32)


def weight(*shape: int, scale: float | None = None) -> tf.Variable:
    """Return a variable of normal numbers, by default of one over the root of rows."""
    scale = float(shape[0]) ** -0.5 if scale is None else scale
    value = np.random.default_rng(shape).normal(size=shape) * scale
    return tf.Variable(value.astype(np.float32))


def network(outputs: int, last: Any = None, first: str = "relu") -> keras.Sequential:
    """Return two dense layers with their activations, the first of 32 features."""
    layers = [keras.layers.Dense(32, first), keras.layers.Dense(outputs, last)]
    return keras.Sequential(layers)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the mean loss of whole labels."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    )


def trained(
    loss: Callable[..., tf.Tensor],
    *inputs: Draw,
    optimizer: Any = None,
    iterations: int = 1,
) -> UserProgram:
    """Return two steps of training all that a loss has gradients of; they return it.

    Args:
      loss: a function of the inputs.
      inputs: how each is drawn.
      optimizer: Keras'; gradient descent by default.
      iterations: how often the longest loop runs.
    """
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    # Layers that are built on first use make their variables outside of the function.
    with tf.GradientTape() as tape:
        first = loss(*map(tf.constant, _drawn(inputs, 0)))
    used = tape.watched_variables()
    gradients = zip(tape.gradient(first, used), used, strict=True)
    variables = [variable for slope, variable in gradients if slope is not None]
    optimizer.build(variables)

    def step(*values: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(*values)
        gradients = tape.gradient(value, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return value

    return UserProgram(step, inputs, 2, iterations)


def built(make: Callable[[], UserProgram], low_dtype: str) -> tuple[Dish, int]:
    """Return a program as it is with a 16-bit type, and how often its loop runs.

    Args:
      make: returns it, its variables made anew.
      low_dtype: "bfloat16", or "float16", for which losses are scaled.
    """
    keras.utils.set_random_seed(0)
    made = make()
    scales = low_dtype == "float16"
    with scaled_by(StaticLossScale(_FLOAT16_SCALE) if scales else NoOpLossScale()):
        frozen = _frozen(made)
    on_devices = placed(frozen.graph_def, KIND)
    frozen = dataclasses.replace(frozen, graph_def=on_devices)
    initial = _initial_values(frozen)

    def sample(index: int) -> Sample:
        drawn = _drawn(made.inputs, index)
        feeds = dict(zip(frozen.feeds, drawn, strict=True))
        return Sample(feeds, _moved(initial, index))

    return Dish(frozen, frozen.state, sample), made.iterations


def _frozen(made: UserProgram) -> Program:
    values = _drawn(made.inputs, 0)
    if not made.in_v1_graph:
        return program_from_function(tf.function(made.step), *values, steps=made.steps)
    with control_flow(v2=False), tf.Graph().as_default() as graph:
        placeholders = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in values]
        fetches = tf.nest.flatten(made.step(*placeholders))
        feeds = dict(zip(placeholders, values, strict=True))
        return program_from_graph(graph, feeds, fetches, steps=made.steps)


def _drawn(inputs: Sequence[Draw], index: int) -> list[np.ndarray]:
    return [
        draw(np.random.default_rng((index, place))) for place, draw in enumerate(inputs)
    ]


def _initial_values(program: Program) -> dict[str, np.ndarray]:
    """Return the values of the constants that initialize variables."""
    made = {name.removesuffix("_read:0") + "_initial" for name in program.state}
    return {
        f"{node.name}:0": tf.make_ndarray(node.attr["value"].tensor)
        for node in program.graph_def.node
        if node.name in made
    }


def _moved(initial: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """Return other weights of the same size; what is alike everywhere stays."""
    rng = np.random.default_rng((index, len(initial)))
    return {
        name: (value + rng.normal(0, value.std() / 2, value.shape)).astype(np.float32)
        for name, value in initial.items()
        if index and value.dtype == np.float32 and value.std()
    }
