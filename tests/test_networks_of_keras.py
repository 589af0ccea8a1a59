"""What the fusions take for granted of networks that come with Keras."""

from __future__ import annotations

from collections import defaultdict

import keras
import pytest
import tensorflow as tf
from keras import layers

PRODUCTS = (
    *(layers.Conv2D, layers.DepthwiseConv2D, layers.SeparableConv2D),
    *(layers.Dense, layers.EinsumDense),
)


def made_by(tensor: keras.KerasTensor) -> keras.layers.Layer:
    """Return the layer whose output a tensor is."""
    return tensor._keras_history.operation


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    """DenseNet121 ResNet50V2 Xception InceptionV3 NASNetMobile MobileNetV3Small
    EfficientNetB0""".split(),
)
def test_no_network_has_scales_that_only_input_channels_could_take(name: str) -> None:
    network = getattr(keras.applications, name)(weights=None, input_shape=(96, 96, 3))
    normalized, readers = [], defaultdict(list)
    for layer in network.layers:
        if isinstance(layer, layers.BatchNormalization):
            normalized.append(layer)
        if not isinstance(layer, layers.InputLayer):
            for given in tf.nest.flatten(layer.input):
                readers[made_by(given)].append(layer)
    assert normalized
    assert not any(isinstance(layer, layers.EinsumDense) for layer in network.layers)
    for layer in normalized:
        if any(isinstance(reader, PRODUCTS) for reader in readers[layer]):
            assert isinstance(made_by(layer.input), PRODUCTS)
