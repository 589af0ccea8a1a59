"""The two steps that are measured, as ``tf.function`` over tensors kept in memory.

``tf-amp bench benchmarks.steps:MODEL`` measures them; MODEL is a name of the catalog.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.catalog import ENTRIES, Entry, entry

_SEED = 7
_LONGEST_COMPARISON_SECONDS = 90.0
_OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(1e-2),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "adam_1e-4": lambda: keras.optimizers.Adam(1e-4),
    "momentum": lambda: keras.optimizers.SGD(1e-2, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(1e-2, momentum=0.9, nesterov=True),
    "adamw": lambda: keras.optimizers.AdamW(1e-3),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-3),
    "adagrad": lambda: keras.optimizers.Adagrad(1e-2),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "adamax": lambda: keras.optimizers.Adamax(1e-3),
    "ftrl": lambda: keras.optimizers.Ftrl(1e-2),
}


@dataclass(frozen=True)
class Step:
    """A traced function with its arguments; calling it runs one step."""

    function: Callable[..., tf.Tensor]
    arguments: tuple[tf.Tensor, ...]

    def __call__(self) -> tf.Tensor:
        """Run one step and return the loss, or the outputs of inference."""
        return self.function(*self.arguments)


def __getattr__(name: str) -> Callable[[int, str], Step]:
    """Return what makes steps of the model called ``name`` for ``tf-amp bench``."""
    if name not in {each.name for each in ENTRIES}:
        raise AttributeError(name)

    def make_step(batch: int, mode: str) -> Step:
        described = entry(name).with_batch(batch)
        return step_of(build_model(described), described, mode)

    return make_step


def run_until_decided(step: Callable[[], object], *, fewest: int) -> None:
    """Run steps until those of tf-amp itself have decided, or for so long in vain."""
    from tf_amp.compare import call_sites

    until = time.monotonic() + _LONGEST_COMPARISON_SECONDS
    done = 0
    while done < fewest or (call_sites.is_any_open() and time.monotonic() < until):
        step()
        done += 1


def build_model(entry: Entry, *, scales_loss: bool = False) -> keras.Model:
    """Return the compiled model of ``entry``; its weights are always the same.

    Args:
      entry: of the catalog.
      scales_loss: whether Keras is to scale its loss. It does so by itself under the
        policy mixed_float16.
    """
    keras.utils.set_random_seed(_SEED)
    module = importlib.import_module(entry.module_name)
    model = module.build(**entry.sizes)
    optimizer = _OPTIMIZERS[entry.optimizer]()
    if scales_loss:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, loss=module.loss(), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def step_of(
    model: keras.Model, entry: Entry, mode: str, *, jit_compile: bool | None = False
) -> Step:
    """Return the step of ``mode``, ``train`` or ``infer``, over one fixed batch."""
    inputs, targets = sample_of(entry, mode)

    def train(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        return model.train_step((inputs, targets))["loss"]

    def infer(inputs: tf.Tensor) -> tf.Tensor:
        return model(inputs, training=False)

    if mode == "train":
        return Step(tf.function(train, jit_compile=jit_compile), (inputs, targets))
    return Step(tf.function(infer, jit_compile=jit_compile), (inputs,))


def sample_of(entry: Entry, mode: str) -> tuple[Any, Any]:
    """Return the inputs and wanted outputs of one batch, always the same."""
    module = importlib.import_module(entry.module_name)
    rng = np.random.default_rng(_SEED)
    sample = module.sample(rng, entry.batch(mode), **entry.sizes)
    inputs, targets = tf.nest.map_structure(tf.constant, sample)
    return inputs, targets


def seconds_of(step: Step) -> float:
    """Run a step, and return how long it took."""
    begin = time.perf_counter()
    step()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - begin
