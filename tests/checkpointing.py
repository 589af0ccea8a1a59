"""Trainings in this process, each as if it were the first, and their checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import scaled_by
from tf_amp import DynamicLossScale, LossScale
from tf_amp.rewriting import host
from tf_amp.training.checkpoints import installing
from tf_amp.training.loss_scale import resumption, variables
from tf_amp.training.optimizers import skipping

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
BAD = X * np.float32(np.inf)


def dynamic(initial: float = 2.0**10, growth_interval: int = 4) -> DynamicLossScale:
    """Return a loss scale that soon grows."""
    return DynamicLossScale(initial=initial, growth_interval=growth_interval)


@contextlib.contextmanager
def anew() -> Iterator[None]:
    """Begin as a process does: no state, nothing restored, no plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variables, "_eager_states", {})
        patch.setattr(variables, "_latest", [])
        patch.setattr(resumption, "_restored", [])
        patch.setattr(skipping, "_applied", [])
        host.forget()
        yield


@contextlib.contextmanager
def training(loss_scale: LossScale) -> Iterator[LossScale]:
    """Begin anew; scale and keep what is done inside."""
    with anew(), scaled_by(loss_scale):
        installing.install()
        yield loss_scale


class Model(tf.Module):
    """A product, its optimizer and a step."""

    def __init__(self, optimizer=None) -> None:
        """Make the weights."""
        super().__init__()
        self.weight = tf.Variable(tf.ones((4, 1)))
        self.optimizer = optimizer
        if optimizer is not None:
            optimizer.build([self.weight])

    @tf.function
    def step(self, x):
        """Take one step."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ self.weight) ** 2)
        gradient = tape.gradient(loss, self.weight)
        if self.optimizer is None:
            self.weight.assign_sub(0.1 * gradient)
        else:
            self.optimizer.apply_gradients([(gradient, self.weight)])
        return loss
