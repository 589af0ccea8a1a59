"""Small models of Keras 3 and tf_keras whose loss tells what they computed in."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

from keras_callbacks import AutoMixedPrecision

try:
    import tf_keras
except ImportError:
    # The environment that tests run in on a GPU is without it.
    tf_keras = None

# float32 keeps both low bits of VALUE, float16 one of them, bfloat16 none.
VALUE = 1 + 2**-9 + 2**-12
X = np.tile(np.eye(8, dtype="float32") * np.float32(VALUE), (4, 1))
Y = np.zeros_like(X)

both_keras = pytest.mark.parametrize("kit", [keras, tf_keras], ids=["k3", "tf_keras"])


def telling_model(kit, optimizer=None, **options):
    """Return a model of the identity, whose loss on (X, Y) depends on the type."""
    inputs = kit.layers.Input([8])
    dense = kit.layers.Dense(8, use_bias=False, kernel_initializer="identity")
    model = kit.Model(inputs, dense(inputs))
    model.compile(
        optimizer or kit.optimizers.SGD(0.0), "mse", **{"jit_compile": False, **options}
    )
    # A function that makes variables would be traced twice.
    model.optimizer.build(model.trainable_variables)
    return model


def mixed(**options):
    """Return the callback that trains in 16 bits, whatever it costs."""
    return AutoMixedPrecision(**{"opt_level": "O2", "verbose": 0, **options})


half = functools.partial(mixed, dtype="float16")


def fit(model, *callbacks, x=X, **options):
    """Train for one epoch of four steps; return the history as a dictionary."""
    given = {"batch_size": 8, "verbose": 0, "shuffle": False, **options}
    return model.fit(x, Y, callbacks=list(callbacks), **given).history


def overflowing(value=np.inf):
    """Return inputs whose second step overflows, or is not a number."""
    inputs = X.copy()
    inputs[8:16] = value
    return inputs


def is_float32(loss):
    """Return whether a telling model's loss was computed in float32."""
    return bool(abs(loss / (VALUE**2 / 8) - 1) < 2**-20)


def regression(kit, optimizer, base=None, **options):
    """Return a model that learns, from weights that are always the same."""
    kit.utils.set_random_seed(3)
    inputs = kit.layers.Input([8])
    hidden = kit.layers.Dense(16, activation="relu")(inputs)
    model = (base or kit.Model)(inputs, kit.layers.Dense(8)(hidden))
    model.compile(optimizer, "mse", **{"jit_compile": False, **options})
    return model


def loss_scale_optimizer(kit, scale):
    """Return Keras' own optimizer that scales losses; it leaves weights alone."""
    place = kit.optimizers if kit is keras else kit.mixed_precision
    return place.LossScaleOptimizer(kit.optimizers.SGD(0.0), initial_scale=scale)
