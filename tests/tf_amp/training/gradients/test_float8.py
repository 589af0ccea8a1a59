"""Keras' float8 layers keep scales and histories, which are no gradients."""

import keras
import numpy as np

from tests.scaling import figures, scaled_by, values_of
from tf_amp import StaticLossScale

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(8, 4)
OF_SCALED_GRADIENTS = ("outputs_grad_scale", "outputs_grad_amax_history")


def trained(targets=(1.0, 1.0, 1.0)):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(3, kernel_initializer="ones")])
    model.build((None, 4))
    model.quantize("float8")
    model.compile(keras.optimizers.SGD(2.0**-4), "mse")
    for target in targets:
        model.train_on_batch(X, np.full((8, 3), target, np.float32))
    return model


def named(model):
    variables = model.layers[0].variables
    return dict(zip([v.name for v in variables], values_of(variables), strict=True))


def test_what_overwrites_its_variable_is_no_gradient():
    expected = named(trained())
    with scaled_by(StaticLossScale(2.0**3)) as loss_scale:
        found = named(trained())
        assert figures(loss_scale)[1:] == (3, 0)
    history = "outputs_grad_amax_history"
    assert found.keys() == expected.keys() >= {"kernel_scale", *OF_SCALED_GRADIENTS}
    np.testing.assert_array_equal(found[history], 2.0**3 * expected[history])
    for name in found.keys() - OF_SCALED_GRADIENTS:
        np.testing.assert_array_equal(found[name], expected[name], name)


def test_histories_of_a_step_that_is_skipped_stay():
    with scaled_by(StaticLossScale(2.0**3)) as loss_scale:
        before = named(trained((1.0,)))
        after = named(trained((1.0, np.inf)))
        assert figures(loss_scale)[2] == 1
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, name)
