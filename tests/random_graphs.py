"""Random TensorFlow programs: layers, control flow, functions, optimizers.

`random_graph(seed)` builds a real program by TensorFlow's own API, in a v1 graph with
v1 or v2 control flow, or as a traced `tf.function`, and freezes it.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tf_amp
from grappler_pass import kept_kernels
from tests.programs import (
    Program,
    control_flow,
    program_from_function,
    program_from_graph,
)
from tests.random_layers import Builder, outside
from tests.random_structures import choose_layer

BATCH = 4
# With a tiny epsilon Adam's first step is the gradient's sign, which rounding flips.
DAMPING = 0.05
V1_OPTIMIZERS: tuple[Callable[[], tf.compat.v1.train.Optimizer], ...] = (
    lambda: tf.compat.v1.train.GradientDescentOptimizer(0.05),
    lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    lambda: tf.compat.v1.train.AdamOptimizer(0.01, epsilon=DAMPING),
    lambda: tf.compat.v1.train.RMSPropOptimizer(0.01, epsilon=DAMPING),
    lambda: tf.compat.v1.train.AdagradOptimizer(0.05),
    lambda: tf.compat.v1.train.AdadeltaOptimizer(0.05, epsilon=DAMPING),
    lambda: tf.compat.v1.train.FtrlOptimizer(0.05),
)
# Every so many seeds is one of Keras' layers and optimizers.
KERAS_EVERY, KERAS_SEED = 5, 4
# What is fused where it is traced, and what of that is not.
FUSED_OPTIMIZERS: tuple[tuple[str, dict[str, object]], ...] = (
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {"epsilon": DAMPING}),
    ("Adam", {"epsilon": DAMPING, "amsgrad": True}),
    ("AdamW", {"epsilon": DAMPING, "clipnorm": 1.0}),
    ("Adamax", {"epsilon": DAMPING}),
    ("RMSprop", {"epsilon": DAMPING}),
    ("RMSprop", {"epsilon": DAMPING, "momentum": 0.9, "centered": True}),
    ("Adadelta", {"epsilon": DAMPING, "use_ema": True}),
    ("Adagrad", {"epsilon": DAMPING}),
    ("Ftrl", {"beta": 0.1}),
    ("Lion", {}),
)
KERAS_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "Nadam")


def is_of_keras(seed: int) -> bool:
    """Return whether a seed's program has layers and optimizers of Keras 3."""
    return seed % KERAS_EVERY == KERAS_SEED


def random_graph(seed: int, fuse: Iterable[str] = ()) -> Program:
    """Return the program of that seed, the same in every process.

    Half of the programs train; seeds build v1 graphs with v1 control flow, v1 graphs
    with v2 control flow, and functions, some of these with layers of Keras.

    Args:
      seed: of all that is random.
      fuse: fusions that layers and optimizers of Keras are traced with.
    """
    rng = random.Random(seed)
    if is_of_keras(seed):
        with traced_with(fuse):
            return _random_function(rng, has_layers=True)
    kind = rng.choice(("v1", "v2", "function"))
    if kind == "function":
        return _random_function(rng)
    with control_flow(v2=kind == "v2"), tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(seed)
        ref_variables = kind == "v1" and rng.random() < 0.4
        b = Builder(rng, ref_variables=ref_variables)
        x = _feed(b, b.values(BATCH, rng.choice((3, 8))))
        b.ids = _feed(b, _random_ids(rng))
        fetches = _forward(b, x)
        train = rng.random() < 0.6
        if train:
            fetches += _train_in_graph(b, fetches)
        return program_from_graph(
            graph,
            b.feeds,
            fetches,
            targets=b.targets,
            steps=2 if train else 1,
            random=b.uses_random,
        )


def _feed(b: Builder, value: np.ndarray) -> tf.Tensor:
    known = b.rng.random() < 0.5
    shape = value.shape if known else [None, *value.shape[1:]]
    tensor = tf.compat.v1.placeholder(value.dtype, shape)
    b.feeds[tensor] = value
    # Layers may need the batch size; ensure_shape keeps the placeholder's unknown.
    return tensor if known else tf.ensure_shape(tensor, value.shape)


def _random_ids(rng: random.Random) -> np.ndarray:
    return np.array([rng.randrange(3000) for _ in range(BATCH)], np.int32)


def _forward(b: Builder, x: tf.Tensor) -> list[tf.Tensor]:
    """Stack layers; return the loss, the last value and some on the way."""
    on_the_way: list[tf.Tensor] = []
    for _ in range(b.rng.randint(2, 6)):
        x = choose_layer(b, x, structures=0.4)(b, x)
        if b.rng.random() < 0.15:
            on_the_way.append(x)
    if b.rng.random() < 0.3 and len(x.shape) == 2:
        labels = tf.one_hot(tf.math.floormod(b.ids, x.shape[-1]), x.shape[-1])
        losses = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x)
    else:
        losses = tf.square(x)
    return [tf.reduce_mean(losses), x, *on_the_way]


def _train_in_graph(b: Builder, forward: list[tf.Tensor]) -> list[tf.Tensor]:
    """Add gradients and perhaps an optimizer; return the gradients to fetch."""
    if not b.variables:
        return []
    gradients = tf.gradients(forward[0], b.variables)
    pairs = [
        (g, v) for g, v in zip(gradients, b.variables, strict=True) if g is not None
    ]
    if not pairs:
        return []
    fetches = [tf.convert_to_tensor(g) for g, _ in pairs if b.rng.random() < 0.5]
    if b.rng.random() < 0.3:
        clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], 0.5)
        pairs = [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]
        fetches.append(norm)
    if b.rng.random() < 0.7:
        optimizer = b.rng.choice(V1_OPTIMIZERS)()
        # A v1 graph orders reads and updates only where it is told to.
        read_before = [*forward, *fetches, *(g for g, _ in pairs)]
        with tf.control_dependencies([tf.group(*read_before)]):
            b.targets.append(optimizer.apply_gradients(pairs))
    return fetches


@contextlib.contextmanager
def traced_with(fuse: Iterable[str]) -> Iterator[None]:
    """Trace with some fusions; nothing that is traced here is run here."""
    # Layers are numbered anew.
    keras.utils.clear_session()
    # What is traced here runs elsewhere: this process goes on keeping weights.
    with mock.patch.object(kept_kernels, "stop_keeping"):
        tf_amp.enable(dtype="bfloat16", fuse=tuple(fuse) or "off")
        try:
            yield
        finally:
            tf_amp.disable()


def _random_function(rng: random.Random, *, has_layers: bool = False) -> Program:
    """Trace a function once, outside of which its variables are made."""
    b = Builder(rng, has_layers=has_layers)
    x, ids = b.values(BATCH, rng.choice((3, 8))), _random_ids(rng)
    train = b.trains = rng.random() < 0.6
    optimizers: list[Any] = []

    @tf.function(autograph=False)
    def step(x: tf.Tensor, ids: tf.Tensor) -> Sequence[tf.Tensor]:
        b.ids = ids
        with tf.GradientTape() as tape:
            fetches = _forward(b, x)
        gradients = tape.gradient(fetches[0], b.variables) if train else []
        pairs = [
            (g, v)
            for g, v in zip(gradients, b.variables, strict=False)
            if g is not None
        ]
        if not pairs:
            return fetches
        optimizers.append(outside(lambda: _keras_optimizer(b)))
        optimizers[0].apply_gradients(pairs)
        wanted = [tf.convert_to_tensor(g) for g, _ in pairs if rng.random() < 0.5]
        # A step may return nothing but its loss.
        return rng.choice((fetches + wanted, fetches[:1]))

    # In which variables are made outside, so that it is traced no second time.
    step.get_concrete_function(
        tf.TensorSpec(x.shape), tf.TensorSpec(ids.shape, "int32")
    )
    order = _keras_variables(b, optimizers) if has_layers else ()
    steps = 2 if train else 1
    return program_from_function(
        step, x, ids, steps=steps, random=b.uses_random, order=order
    )


def _keras_variables(b: Builder, optimizers: list[Any]) -> list[tf.Variable]:
    """Return all variables of a program of Keras, as they were made."""
    kept = [v for layer in b.layers for v in layer.non_trainable_variables]
    own = [*kept, *(v for optimizer in optimizers for v in optimizer.variables)]
    return [*b.variables, *(each.value for each in own)]


def _keras_optimizer(b: Builder) -> Any:
    """Return an optimizer of either Keras, of the third one where that has layers."""
    rng = b.rng
    if b.has_layers:
        library, (name, fields) = keras, rng.choice(FUSED_OPTIMIZERS)
    else:
        name = rng.choice(KERAS_OPTIMIZERS)
        library = importlib.import_module(rng.choice(("keras", "tf_keras")))
        fields = {} if name == "SGD" else {"epsilon": DAMPING}
    optimizer = getattr(library.optimizers, name)(0.01, **fields)
    optimizer.build(b.variables)
    return optimizer
