"""Scripts written for Apex or MXNet scale exactly once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import tf_amp
from tests.scaling import figures
from tf_amp import ConfigError, DynamicLossScale, StaticLossScale
from tf_amp.runtime import apex

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def _undone(monkeypatch):
    monkeypatch.setattr(apex, "_initialized", None)
    yield
    tf_amp.disable()


@pytest.fixture
def said(monkeypatch):
    """Collect what is logged once."""
    lines = []

    def log(level, text, *args):
        if text.startswith("tf_amp."):
            lines.append(text % args)

    apex._note.cache_clear()
    monkeypatch.setattr(logging, "log", log)
    return lines


def dense():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def gradients(model, optimizer, x, **options):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    with tf_amp.scale_loss(loss, optimizer, **options) as scaled_loss:
        return tape.gradient(scaled_loss, model.trainable_variables)


def test_a_script_for_apex_scales_once_and_is_told_so(said):
    model, optimizer = dense(), keras.optimizers.SGD(0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(X) ** 2)
    expected = tape.gradient(loss, model.trainable_variables)

    spec = StaticLossScale(64.0)
    given = tf_amp.initialize(model, optimizer, opt_level="O2", loss_scale=spec)
    assert given == (model, optimizer)
    for _ in range(2):
        got = tf.function(gradients)(model, optimizer, tf.constant(X))
    # Rounded to eight bits, but neither 64 times too large nor too small.
    one, other = (np.concatenate([np.ravel(g) for g in gs]) for gs in (got, expected))
    assert np.linalg.norm(one - other) < 2**-4 * np.linalg.norm(other)
    assert figures(spec) == (64.0, 2, 0)
    assert len([line for line in said if "scaled, once" in line]) == 1


def test_an_overflow_in_such_a_script_is_skipped():
    model, optimizer = dense(), keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    spec = DynamicLossScale(initial=2.0**10)
    tf_amp.initialize([model], [optimizer], loss_scale=spec)

    @tf.function
    def step(x):
        optimizer.apply(gradients(model, optimizer, x), model.trainable_variables)

    before = [w.numpy() for w in model.weights]
    step(tf.constant(X * np.float32("inf")))
    assert all(map(np.array_equal, before, [w.numpy() for w in model.weights]))
    assert figures(spec) == (2.0**9, 0, 1)
    step(tf.constant(X))
    assert int(optimizer.iterations) == 1


def test_lists_come_back_as_lists_and_a_model_alone_alone():
    first, second = dense(), dense()
    optimizers = [keras.optimizers.SGD(), tf.compat.v1.train.AdamOptimizer()]
    given = tf_amp.initialize([first, second], optimizers)
    assert given == ([first, second], optimizers)
    assert tf_amp.initialize(first) is first


def test_each_of_several_losses_has_a_scale_of_its_own():
    model, optimizer = dense(), keras.optimizers.SGD(0.1)
    tf_amp.initialize(model, optimizer, loss_scale="dynamic", num_losses=2)
    slopes = tf.function(gradients)
    slopes(model, optimizer, tf.constant(X * np.float32("inf")), loss_id=0)
    slopes(model, optimizer, tf.constant(X), loss_id=1)
    first, second = apex._initialized
    assert figures(first) == (2.0**14, 0, 1)
    assert figures(second) == (2.0**15, 1, 0)


def test_initialized_as_disabled_everything_stays_as_it_was():
    model, optimizer = dense(), keras.optimizers.SGD(0.1)
    tf_amp.initialize(model, optimizer, enabled=False)
    assert not tf_amp.is_enabled()
    assert len(gradients(model, optimizer, tf.constant(X))) == 2


def test_a_script_for_mxnet_runs(said):
    model, trainer = dense(), keras.optimizers.SGD(0.1)
    tf_amp.init("float16", loss_scale=8.0)
    assert tf_amp.init_trainer(trainer) is None
    gradients(model, trainer, tf.constant(X))
    assert tf_amp.loss_scale_state().scale == 8.0
    assert [line.split()[0] for line in said] == [
        "tf_amp.init_trainer:",
        "tf_amp.scale_loss:",
    ]


def test_arguments_of_apex_without_a_meaning_here_are_accepted(said):
    tf_amp.initialize(dense(), opt_level="O2", keep_batchnorm_fp32=True, verbosity=0)
    assert any("keep_batchnorm_fp32 has no effect" in line for line in said)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"model": 3}, "model: received 3"),
        ({"model": []}, r"model: received \[\]"),
        ({"optimizer": "adam"}, "optimizer: received 'adam'"),
        ({"optimizer": [keras.optimizers.SGD(), None]}, "received None"),
        ({"opt_level": "O9"}, "O9"),
        ({"num_losses": 0}, "num_losses=0"),
        ({"loss_scale": "big"}, "received 'big'"),
        ({"max_loss_scale": 1024.0}, "'max_loss_scale'.*DynamicLossScale\\(minimum="),
        ({"half_measures": True}, "unknown argument 'half_measures'"),
    ],
)
def test_bad_arguments_of_initialize_are_quoted(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        tf_amp.initialize(**{"model": dense(), **arguments})


def test_scaling_before_anything_is_switched_on_is_an_error():
    optimizer = keras.optimizers.SGD()
    with pytest.raises(ConfigError, match=r"Call tf_amp\.initialize"):
        with tf_amp.scale_loss(tf.constant(1.0), optimizer):
            pass
    with pytest.raises(ConfigError, match=r"init_trainer: .*tf_amp\.init\(\) first"):
        tf_amp.init_trainer(optimizer)


def test_a_loss_that_was_not_announced_is_an_error():
    optimizer = keras.optimizers.SGD()
    tf_amp.initialize(dense(), optimizer)
    with pytest.raises(ConfigError, match=r"loss_id=1.*num_losses"):
        with tf_amp.scale_loss(tf.constant(1.0), optimizer, loss_id=1):
            pass
