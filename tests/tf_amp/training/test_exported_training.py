"""Functions that were traced while losses are scaled can be stored, and train on."""

import numpy as np
import tensorflow as tf

from tests.scaling import figures, scaled_by
from tf_amp import DynamicLossScale

X = np.linspace(0.5, 2.0, 4, dtype=np.float32)
BAD = X * np.float32(np.inf)


class Trainer(tf.Module):
    def __init__(self):
        self.weight = tf.Variable(X)

    @tf.function(input_signature=[tf.TensorSpec([4])])
    def gradient(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.weight * x)
        return tape.gradient(loss, self.weight)

    @tf.function(input_signature=[tf.TensorSpec([4])])
    def train(self, x):
        self.weight.assign_sub(0.1 * self.gradient(x))
        return {"weight": tf.reduce_sum(self.weight)}


def test_a_training_step_traced_under_loss_scaling_trains_where_it_is_loaded(tmp_path):
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        trainer = Trainer()
        step = trainer.train.get_concrete_function()
        tf.saved_model.save(trainer, str(tmp_path), signatures={"train": step})
    loaded = tf.saved_model.load(str(tmp_path))
    for x, expected in ((X, 0.9 * X), (BAD, 0.9 * X), (X, 0.8 * X)):
        loaded.signatures["train"](tf.constant(x))
        np.testing.assert_allclose(loaded.weight, expected, 1e-6)
    states = loaded.tf_amp_state.variables_of_functions
    (floats,) = (v for v in states if v.dtype == tf.float32 and v.shape.rank)
    assert float(floats[0]) == 2.0**9


def test_a_function_that_is_traced_again_to_be_stored_holds_nothing_of_ours(tmp_path):
    with scaled_by(DynamicLossScale()) as loss_scale:
        trainer = Trainer()
        trainer.train(X)
        tf.saved_model.save(trainer, str(tmp_path), {"train": trainer.train})
        trainer.train(X)
        assert sum(figures(loss_scale)[1:]) == 2
    data = (tmp_path / "saved_model.pb").read_bytes()
    assert b"PyFunc" not in data and b"tf_amp" not in data
    loaded = tf.saved_model.load(str(tmp_path))
    assert np.isfinite(loaded.train(X)["weight"])


def test_a_model_that_only_serves_is_stored_without_a_loss_scale(tmp_path):
    class Server(tf.Module):
        def __init__(self):
            self.weight = tf.Variable(X)

        @tf.function(input_signature=[tf.TensorSpec([4])])
        def serve(self, x):
            return self.weight * x

    with scaled_by(DynamicLossScale()):
        trainer = Trainer()
        trainer.train(X)
        tf.saved_model.save(Server(), str(tmp_path))
    assert not hasattr(tf.saved_model.load(str(tmp_path)), "tf_amp_state")
