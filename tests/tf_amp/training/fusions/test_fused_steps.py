"""Keras 3's updates run as one kernel each, and change weights as Keras writes it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as keras_optimizers
from keras.optimizers import SGD, Adam, RMSprop

import tf_amp
from grappler_pass.planning.plan import Cause

Make = Callable[[], keras.Optimizer]
SHAPE = (256, 256)
STEPS = 100

# What changes a step in other ways than by its formula.
AROUND: dict[str, dict] = {
    "alone": {},
    "weight_decay": {"weight_decay": 0.01},
    "clipnorm": {"clipnorm": 1.0},
    "moving average": {"use_ema": True, "ema_overwrite_frequency": 3},
    "accumulated": {"gradient_accumulation_steps": 2},
    "schedule": {
        "learning_rate": keras_optimizers.schedules.CosineDecay(0.01, STEPS // 2)
    },
}
# Where the kernel rounds 1 - 0.999 to float32, as 1 - float32(0.999), it is off by
# 1.3e-5 of itself, and so are averages of squares. All else is rounding.
ADAM_BOUND, ROUNDING = 2e-5, 2e-6
FTRL = {
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.01,
    "l2_shrinkage_regularization_strength": 0.01,
    "beta": 0.1,
}
# The optimizer and its arguments, what it is fused to, and by how much that may be off.
KERNELS: dict[str, tuple[Make, dict, str, float]] = {
    "SGD": (SGD, {}, "GradientDescent", ROUNDING),
    "momentum": (SGD, {"momentum": 0.9}, "KerasMomentum", ROUNDING),
    "Nesterov": (SGD, {"momentum": 0.9, "nesterov": True}, "KerasMomentum", ROUNDING),
    "Adam": (Adam, {}, "Adam", ADAM_BOUND),
    "AMSGrad": (Adam, {"amsgrad": True}, "AdamWithAmsgrad", ADAM_BOUND),
    "AdamW": (keras_optimizers.AdamW, {}, "Adam", ADAM_BOUND),
    "Adamax": (keras_optimizers.Adamax, {}, "AdaMax", ROUNDING),
    "RMSprop with momentum": (RMSprop, {"momentum": 0.9}, "RMSProp", ROUNDING),
    "centered RMSprop": (
        RMSprop,
        {"momentum": 0.9, "centered": True},
        "CenteredRMSProp",
        ROUNDING,
    ),
    "RMSprop": (RMSprop, {}, "GradientDescent GradientDescent", ROUNDING),
    "Adagrad": (keras_optimizers.Adagrad, {}, "AdagradV2", ROUNDING),
    "Adadelta": (keras_optimizers.Adadelta, {}, "Adadelta", ROUNDING),
    "Ftrl": (keras_optimizers.Ftrl, FTRL, "FtrlV2", ROUNDING),
}


@contextlib.contextmanager
def enabled(**given) -> Iterator[None]:
    """Mixed precision with plans that change nothing else here."""
    tf_amp.enable(tune="off", device_profile="cpu-generic", **given)
    try:
        yield
    finally:
        tf_amp.disable()


class Training:
    """A weight and an optimizer, and what its kernels are."""

    def __init__(
        self, make: Make, shape=SHAPE, dtype="float32", compiled=None, **given
    ) -> None:
        """Begin with the same numbers each time."""
        self.numbers = np.random.default_rng(0)
        self.weight = keras.Variable(self.draw(shape), dtype=dtype)
        self.optimizer = make(**{"learning_rate": 0.01, **given})
        self.optimizer.build([self.weight])
        self.step = tf.function(
            lambda g: self.optimizer.apply([g], [self.weight]),
            autograph=False,
            jit_compile=compiled,
        )

    def draw(self, shape=SHAPE) -> np.ndarray:
        """Return numbers of about 1."""
        return self.numbers.normal(size=shape).astype(np.float32)

    def run(self, count: int) -> list[np.ndarray]:
        """Take steps; return the weight and all of the optimizer's variables."""
        for _ in range(count):
            self.step(tf.constant(self.draw(self.weight.shape), self.weight.dtype))
        return [np.asarray(v.value) for v in (self.weight, *self.optimizer.variables)]

    def kernels(self) -> list[str]:
        """Return the kernels that its function updates variables by."""
        spec = tf.TensorSpec(self.weight.shape, self.weight.dtype)
        return kernels_in(self.step, spec)


def kernels_in(function, *specs) -> list[str]:
    """Return the fused kernels of a function and of those that it calls."""
    graph_def = function.get_concrete_function(*specs).graph.as_graph_def()
    nodes = [
        *graph_def.node,
        *(n for f in graph_def.library.function for n in f.node_def),
    ]
    return [node.op for node in nodes if node.op.startswith("ResourceApply")]


def assert_close(before, after, bound: float) -> None:
    """Compare each variable with the largest of its own values."""
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * np.abs(one).max())


@pytest.mark.parametrize("name", KERNELS)
def test_a_hundred_steps_change_weights_and_slots_as_keras_does(name: str) -> None:
    make, given, kernels, bound = KERNELS[name]
    with enabled(fuse="off"):
        plain = Training(make, **given)
        expected = plain.run(STEPS)
        assert plain.kernels() == []
    with enabled():
        fused = Training(make, **given)
        assert_close(expected, fused.run(STEPS), bound)
        assert fused.kernels() == [f"ResourceApply{each}" for each in kernels.split()]


@pytest.mark.parametrize("around", AROUND)
def test_what_keras_does_around_an_update_stays(around: str) -> None:
    results = []
    for fuse in ("off", "on"):
        with enabled(fuse=fuse):
            training = Training(Adam, **AROUND[around])
            results.append(training.run(10))
            assert bool(training.kernels()) is (fuse == "on")
    assert_close(*results, ADAM_BOUND)


class AssignsByItself(Adam):
    """Sees all that is assigned."""

    def assign_sub(self, variable, value) -> None:
        """Assign half of it."""
        super().assign_sub(variable, 0.5 * value)


LEFT_ALONE: dict[str, tuple[Make, dict]] = {
    "a small weight": (Adam, {"shape": (64, 64)}),
    "a weight of float64": (Adam, {"dtype": "float64"}),
    "what XLA compiles": (Adam, {"compiled": True}),
    "centered RMSprop without momentum": (RMSprop, {"centered": True}),
    "Adagrad with an epsilon that counts": (
        keras_optimizers.Adagrad,
        {"epsilon": 1e-5},
    ),
    "Lion": (keras_optimizers.Lion, {}),
    "Nadam": (keras_optimizers.Nadam, {}),
    "Adafactor": (keras_optimizers.Adafactor, {}),
    "an optimizer that assigns by itself": (AssignsByItself, {}),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_no_kernel_computes_alike_is_left_as_it_is(name: str) -> None:
    make, given = LEFT_ALONE[name]
    results = []
    for fuse in ("off", "on"):
        with enabled(fuse=fuse):
            training = Training(make, **given)
            results.append(training.run(3))
            assert training.kernels() == []
    assert_close(*results, 0.0)


FUSED = ["ResourceApplyGradientDescent", "ResourceApplyAdam"]
SPARSE: dict[str, tuple[Make, dict, list[str]]] = {
    "Adam": (Adam, {}, FUSED),
    "AMSGrad": (Adam, {"amsgrad": True}, []),
    "SGD": (SGD, {}, []),
    "Adamax": (keras_optimizers.Adamax, {}, []),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients_change_weights_as_keras_does(name: str) -> None:
    make, given, kernels = SPARSE[name]
    results = []
    for fuse, expected in (("off", []), ("on", kernels)):
        with enabled(fuse=fuse):
            training = Training(make, **given)

            @tf.function
            def step(values, numbers, training=training):
                rows = tf.IndexedSlices(values, numbers, tf.constant(SHAPE))
                training.optimizer.apply([rows], [training.weight])

            for _ in range(STEPS):
                # Some rows are there twice.
                numbers = training.numbers.integers(0, SHAPE[0], 64).astype(np.int32)
                step(tf.constant(training.draw((64, SHAPE[1]))), tf.constant(numbers))
            specs = tf.TensorSpec([64, SHAPE[1]]), tf.TensorSpec([64], tf.int32)
            assert kernels_in(step, *specs) == expected
            results.append(training.run(0))
    assert_close(*results, ADAM_BOUND if kernels else 0.0)


def test_without_mixed_precision_keras_is_as_it_was() -> None:
    before = keras_optimizers.Adam.update_step
    with enabled(), tf.GradientTape():
        assert keras_optimizers.Adam.update_step is not before
    assert keras_optimizers.Adam.update_step is before
    outside = Training(Adam)
    with tf_amp.mixed_precision_scope():
        inside = Training(Adam)
        inside.run(1)
    outside.run(1)
    assert (inside.kernels(), outside.kernels()) == (["ResourceApplyAdam"], [])


def test_an_eager_step_is_fused_too() -> None:
    results = []
    for fuse in ("off", "on"):
        with enabled(fuse=fuse):
            training = Training(Adam)
            training.step = training.step.python_function
            results.append(training.run(3))
    assert_close(*results, ADAM_BOUND)
    assert any(np.any(a != b) for a, b in zip(*results, strict=True))


def test_a_step_that_overflows_changes_nothing() -> None:
    with enabled(dtype="float16", loss_scale="dynamic"):
        training = Training(Adam)

        @tf.function
        def step(factor):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(training.weight.value**2) * factor
            gradients = tape.gradient(loss, [training.weight.value])
            training.optimizer.apply(gradients, [training.weight])

        step(1.0)
        assert kernels_in(step, tf.TensorSpec([])) == ["ResourceApplyAdam"]
        before = training.run(0)
        step(math.inf)
        assert_close(before, training.run(0), 0.0)
        step(1.0)
        assert np.all(np.asarray(training.weight.value) != before[0])


def test_a_plan_lists_what_was_fused_where_the_program_was_traced() -> None:
    with enabled():
        training = Training(Adam)
        training.run(1)
        plan = tf_amp.explain(training.step, tf.constant(training.draw()))
        (fusion,) = plan.traced_fusions
        assert fusion.rule == "optimizer_steps"
        assert fusion.reason.cause is Cause.TRACED
        assert str(fusion.reason) in str(plan)
        assert fusion.node.endswith("ResourceApplyAdam")
        assert fusion.seconds > 0.0
        assert plan.is_empty
        assert "it stays float32, with 1 fusion. A step" in plan.summary()
        assert plan.details().endswith("; fused: optimizer_steps 1")
        assert tf_amp.Plan.from_json(plan.to_json()) == plan
    with enabled(fuse="off"):
        training = Training(Adam)
        plain = tf_amp.explain(training.step, tf.constant(training.draw()))
    assert plan.seconds_before < 0.9 * plain.seconds_before
    # Without tf-amp: as the program is priced that was traced so.
    assert plan.seconds_float32 == pytest.approx(plain.seconds_before, rel=0.2)


def test_a_checkpoint_goes_on_without_fusing(tmp_path) -> None:
    path = str(tmp_path / "weights")
    with enabled():
        fused = Training(Adam)
        fused.run(3)
        saved = tf.train.Checkpoint(w=fused.weight.value, o=fused.optimizer)
        path = saved.save(path)
        expected = fused.run(3)
    with enabled(fuse="off"):
        plain = Training(Adam)
        tf.train.Checkpoint(w=plain.weight.value, o=plain.optimizer).restore(path)
        plain.numbers = np.random.default_rng(0)
        for _ in range(4):
            plain.draw()
        assert_close(expected, plain.run(3), ADAM_BOUND)
