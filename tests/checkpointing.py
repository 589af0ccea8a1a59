"""Trainings in this process, each as if it were the first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.checkpoint_ways import X, Y
from tests.scaling import scaled_by
from tf_amp import DynamicLossScale, LossScale
from tf_amp.rewriting import host
from tf_amp.training import checkpoint_record, checkpoints, optimizers, scale_state


def dynamic(initial: float = 2.0**10) -> DynamicLossScale:
    """Return a loss scale that does not grow in a test."""
    return DynamicLossScale(initial=initial, growth_interval=50)


def fit(model: Any, *inputs: np.ndarray, **arguments: Any) -> None:
    """Train a model of Keras on inputs, a batch each; on finite ones by default."""
    for x in inputs or (X,):
        model.fit(x, Y, batch_size=len(x), shuffle=False, verbose=0, **arguments)


@contextlib.contextmanager
def anew() -> Iterator[None]:
    """Begin as a process does: no state, nothing restored, no plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale_state, "_eager_states", {})
        patch.setattr(scale_state, "_latest", [])
        patch.setattr(checkpoint_record, "_restored", [])
        patch.setattr(optimizers, "_applied", [])
        host.forget()
        yield


@contextlib.contextmanager
def training(loss_scale: LossScale) -> Iterator[LossScale]:
    """Begin anew; scale and keep what is done inside."""
    with anew(), scaled_by(loss_scale):
        checkpoints.install()
        yield loss_scale
