"""What one rule has made of a graph does not keep the next one from it."""

from __future__ import annotations

import collections

import keras
import numpy as np

import tf_amp


def test_a_gelu_and_the_normalizations_around_it_are_all_fused() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((128, 512)),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(512, "gelu"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(4),
        ]
    )
    data = np.random.default_rng(0).normal(size=(16, 128, 512)).astype(np.float32)
    wanted = model.predict(data, verbose=0)
    model.predict_function = None
    tf_amp.enable(device_profile="cpu-generic", tune="off")
    try:
        found = model.predict(data, verbose=0)
        fusions = tf_amp.plans()[-1].fusions
    finally:
        tf_amp.disable()
    counts = collections.Counter(fusion.rule for fusion in fusions)
    assert counts == {"flat_activations": 1, "layer_norms": 2}
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
