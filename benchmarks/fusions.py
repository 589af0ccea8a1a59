"""Fusions on known networks: ``python -m benchmarks.fusions``.

Each network of `keras.applications` is run in inference with live variables: by itself,
by itself again, and fused, with the types of a CPU without 16-bit units, which are
float32. All three take turns in one process, so that whatever else the machine does
falls on each.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tf_amp
from benchmarks.cases import Found, measure_cases
from benchmarks.turns import compared
from grappler_pass.fusions import CHANNEL_SCALES

_NETWORKS = (
    "ResNet50",
    "ResNet50V2",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "EfficientNetB0",
    "DenseNet121",
    "InceptionV3",
    "Xception",
    "VGG16",
)
_SIZE, _BATCH, _ROUNDS = 128, 16, 15
# Of the norm of outputs, some rounding errors of float32 (6e-8).
_BOUND = 1e-6
_TITLES = ("network", "folded", "error", "float32 ms", "A/A", "fused")
_EXPLANATION = (
    f"Inference on {_BATCH} images of {_SIZE} x {_SIZE}, random weights. "
    "*folded*: products into whose weights scales were folded. *error*: norm of the "
    f"change of the outputs over their norm, {_BOUND:g} at most. *A/A*, *fused*: "
    f"speed-up over float32 of float32 again, and fused: median of {_ROUNDS} rounds, "
    "quartiles in brackets."
)


def measured(name: str) -> Found:
    """Return the row of a network, and seconds of its calls, round by round."""
    keras.utils.set_random_seed(1)
    network = getattr(keras.applications, name)(
        weights=None, input_shape=(_SIZE, _SIZE, 3)
    )
    _draw_statistics(network)
    images = tf.random.stateless_normal((_BATCH, _SIZE, _SIZE, 3), seed=(1, 2))

    def traced() -> Callable[[], tf.Tensor]:
        call = tf.function(lambda: network(images, training=False), jit_compile=False)
        call()
        return call

    plain, again = traced(), traced()
    tf_amp.enable(device_profile="cpu-generic", tune="off", strict=True)
    fused = traced()
    tf_amp.disable()
    wanted = plain()
    error = float(tf.norm(fused() - wanted) / tf.norm(wanted))
    if not error <= _BOUND:
        raise RuntimeError(f"{name}: outputs are off by {error:g}, over {_BOUND:g}.")
    rules = [each.rule for plan in tf_amp.plans() for each in plan.fusions]
    folded = str(rules.count(CHANNEL_SCALES))
    timed = compared((plain, again, fused), _ROUNDS)
    return [(name, folded, f"{error:.1e}", *timed.cells)], timed.seconds


def _draw_statistics(network: keras.Model) -> None:
    """Give normalizations statistics and weights as if they had been trained."""
    random = np.random.default_rng(1)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            for variable in layer.variables:
                positive = variable.name in ("gamma", "moving_variance")
                drawn = random.uniform(0.5, 1.5, variable.shape)
                variable.assign(drawn if positive else 0.2 * (drawn - 1.0))


if __name__ == "__main__":
    measure_cases("fusions", _NETWORKS, measured, _TITLES, _EXPLANATION, rounds=_ROUNDS)
