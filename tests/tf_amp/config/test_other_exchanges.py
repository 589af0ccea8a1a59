"""Ranks whose gradients are exchanged outside of TensorFlow, as Horovod does."""

from __future__ import annotations

import sys
import types

import pytest
import tensorflow as tf

import tf_amp

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Return a stand-in for Horovod that is imported, and not yet initialized."""

    def size() -> int:
        raise ValueError("Horovod has not been initialized; use hvd.init().")

    library = types.ModuleType("horovod.tensorflow")
    library.size = size
    monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", library)
    return library


def scaled_seed() -> float:
    """Return what a new function's gradients start from: 1, or the loss scale."""
    seen = []

    @tf.custom_gradient
    def identity(x: tf.Tensor) -> tuple[tf.Tensor, object]:
        def slope(dy: tf.Tensor) -> tf.Tensor:
            seen.append(dy)
            return dy

        return tf.identity(x), slope

    weight = tf.Variable(1.0)

    @tf.function
    def slope_of_weight() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = identity(weight * 1.0)
        return tape.gradient(loss, weight), seen[-1]

    gradient, seed = slope_of_weight()
    assert float(gradient) == 1.0
    return float(seed)


@pytest.mark.parametrize("loss_scale", [None, 1024.0])
def test_ranks_that_cannot_agree_on_an_overflow_scale_nothing_and_are_told_once(
    loss_scale: float | None,
    horovod: types.ModuleType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tf_amp.enable("float16", loss_scale=loss_scale)
    horovod.size = lambda: 2
    assert [scaled_seed(), scaled_seed()] == [1.0, 1.0]
    said = [line for line in caplog.messages if "horovod" in line]
    assert len(said) == 1 and "bfloat16" in said[0]


def test_a_rank_alone_scales_its_losses(
    horovod: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    # Its graph stays float32, whose losses are scaled where that is asked for.
    tf_amp.enable("float16", loss_scale=tf_amp.DynamicLossScale())
    assert scaled_seed() == 2.0**15
    horovod.size = lambda: 1
    assert scaled_seed() == 2.0**15
    assert "horovod" not in caplog.text


def test_bfloat16_needs_no_agreement(
    horovod: types.ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    tf_amp.enable("bfloat16")
    horovod.size = lambda: 2
    assert scaled_seed() == 1.0
    assert "horovod" not in caplog.text
