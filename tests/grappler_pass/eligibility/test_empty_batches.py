"""Convolutions of no images, which oneDNN gives a wrong shape, run in 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import tf_amp

Convolution = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# By name: the convolution, sizes of an image and of the filter, channels of the result.
CONVOLUTIONS: dict[str, tuple[Convolution, tuple[int, ...], tuple[int, ...], int]] = {
    "1-D": (lambda x, w: tf.nn.conv1d(x, w, 1, "SAME"), (5, 3), (3, 3, 8), 8),
    # On CPUs with AMX some steps along rows are wrong, and so stay float32.
    "2-D": (
        lambda x, w: tf.nn.conv2d(x, w, (2, 1), "SAME"),
        (4, 4, 3),
        (3, 3, 3, 8),
        8,
    ),
    "3-D": (
        lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"),
        (4, 4, 4, 3),
        (3, 3, 3, 3, 8),
        8,
    ),
    "depthwise": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"),
        (4, 4, 3),
        (3, 3, 3, 2),
        6,
    ),
}


@pytest.fixture(params=["bfloat16", "float16"], autouse=True)
def enabled(request: pytest.FixtureRequest):
    tf_amp.enable(request.param, opt_level="O2", strict=True)
    yield
    tf_amp.disable()


def biased(kind: str, images: tuple[int | None, ...]) -> Callable[..., tf.Tensor]:
    """Return a function of a convolution, a bias and ReLU that takes such images."""
    convolve, _, window, channels = CONVOLUTIONS[kind]

    def call(x: tf.Tensor, w: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(convolve(x, w), bias))

    specs = [tf.TensorSpec(shape) for shape in (images, window, (channels,))]
    return tf.function(call, input_signature=specs, autograph=False)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_batch_that_turns_out_empty_has_its_channels(kind: str) -> None:
    convolve, image, window, channels = CONVOLUTIONS[kind]
    random = np.random.default_rng(0)
    w, x = (random.integers(-2, 3, s).astype("float32") for s in (window, (2, *image)))
    bias = np.arange(channels, dtype="float32")
    # The sizes of images are known, too, or only their channels.
    sizes = image if kind == "3-D" else (*[None] * (len(image) - 1), image[-1])
    call = biased(kind, (None, *sizes))
    empty = call(x[:0], w, bias)
    assert (empty.shape[0], empty.shape[-1]) == (0, channels)
    right = tf.nn.relu(convolve(tf.constant(x), w) + bias)
    np.testing.assert_array_equal(call(x, w, bias), right)


@pytest.mark.parametrize("kind", ["2-D", "3-D"])
def test_what_surely_computes_nothing_runs_as_in_float32(kind: str) -> None:
    _, image, window, channels = CONVOLUTIONS[kind]
    call = biased(kind, (2, 0, *image[1:]))
    result = call(np.ones((2, 0, *image[1:])), np.ones(window), np.ones(channels))
    assert 0 in result.shape
