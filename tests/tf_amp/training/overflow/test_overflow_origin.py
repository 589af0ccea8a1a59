"""Which operation is named when a step overflows, and what becomes of it."""

import gc
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from tensorflow.core.framework.node_def_pb2 import NodeDef

import tf_amp
from tests.processes import run_python
from tf_amp.config.loss_scales.adaptive import DynamicLossScale
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.training import overflow_origin
from tf_amp.training.overflow_search import NotFinite

v1 = tf.compat.v1
ONES = np.ones([4, 8], dtype="float32")


pytestmark = pytest.mark.usefixtures("disabled_afterwards")


@pytest.fixture
def told(monkeypatch):
    """Collect what is said of origins and of what goes back to float32."""
    lines = []

    def log(level, message, *args):
        lines.append(message % args)

    monkeypatch.setattr(logging, "log", log)
    monkeypatch.setattr(logging, "warning", lambda *a: log(None, *a))
    return lines


def scaling(**settings):
    """Return a scope in float16 with a loss scale of its own."""
    loss_scale = DynamicLossScale(**{"initial": 4.0, **settings})
    scope = tf_amp.mixed_precision_scope(
        "float16", loss_scale=loss_scale, opt_level="O2"
    )
    return loss_scale, scope


def three_layers(x, weights, planted=2):
    """Return products of which one is 720,000, far beyond float16."""
    for number, weight in enumerate(weights, start=1):
        by = 300.0 if number == planted else 1.0
        with tf.name_scope(f"layer{number}"):
            x = tf.nn.relu(tf.matmul(x * by, weight * by))
    return tf.reduce_mean(x)


def ones(count):
    return [tf.Variable(tf.ones([8, 8])) for _ in range(count)]


def training_step(weights, **options):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = three_layers(x, weights, **options)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-9 * gradient)
        return loss

    return step


def slope_of(loss_of):
    """Return a function that returns gradients, which no optimizer takes."""

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_of(x)
        return tape.gradient(loss, x)

    return slope


def skipped_step():
    step = training_step(ones(3), planted=0)
    for factor in (1.0, 1.0, 1e6):
        step(tf.constant(factor * ONES))


def hopeless_slope():
    weight = tf.Variable(1e4 * tf.ones([8, 8]))
    slope = slope_of(lambda x: tf.reduce_sum((x @ weight) @ weight) ** 2)
    assert not np.all(np.isfinite(slope(tf.constant(ONES))))


def jacobian():
    weights = [tf.Variable(50.0 * tf.ones([8, 8])) for _ in range(2)]

    @tf.function
    def jacobian_of(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ((1e-3 * x) @ weights[0]) @ weights[1]
        return tape.jacobian(y, x)

    jacobian_of(tf.constant(ONES))


def slope_of_a_sum():
    """Take gradients of 40,000 by each of two readers, at a scale of 4."""
    weights = [tf.Variable(1250.0 * tf.ones([8, 8])) for _ in range(2)]
    first = tf.Variable(tf.eye(8))

    def loss_of(x):
        h = x @ first
        return tf.reduce_sum(h @ weights[0]) + tf.reduce_sum(h @ weights[1])

    np.testing.assert_array_equal(slope_of(loss_of)(tf.constant(ONES)), 20000.0)


# By what overflows, what is said of the step.
OUTCOMES = {
    slope_of_a_sum: "the gradients were taken again without the loss scale",
    skipped_step: "this step was skipped, the 1st in 3 calls",
    hopeless_slope: "the gradients are used unchanged, since no loss scale helps",
    jacobian: "the gradients are returned unchanged; an optimizer that applies them "
    "skips its step",
}


@pytest.mark.parametrize("overflow", OUTCOMES)
def test_it_is_said_what_became_of_the_step(overflow, told):
    loss_scale, scope = scaling()
    with scope:
        overflow()
    origin = tf_amp.loss_scale_state(loss_scale).overflow_origin
    (line,) = (line for line in told if "(AMP302)" in line)
    assert line == f"tf-amp: not finite first: {origin}; {OUTCOMES[overflow]} (AMP302)"
    if overflow is slope_of_a_sum:
        # A sum of gradients is of the backward pass.
        assert (origin.kind, origin.dtype, origin.is_gradient) == ("AddN", "float16", 1)


class Overflowing(keras.layers.Layer):
    """A product of a weight with values that only float32 holds."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(8, 8), initializer="ones", name="weight")

    def call(self, x):
        return tf.matmul(x * 300.0, self.weight * 300.0)


def test_the_layer_is_named_under_fit(told):
    layers = [
        keras.layers.Dense(8, "relu", name="first", kernel_initializer="ones"),
        Overflowing(name="second"),
        keras.layers.Dense(8, name="third"),
    ]
    model = keras.Sequential([keras.Input([8]), *layers])
    model.compile("sgd", "mse", jit_compile=False)
    before = [w.numpy() for w in model.weights]
    loss_scale, scope = scaling()
    with scope:
        model.fit(ONES, ONES, batch_size=1, verbose=0, shuffle=False)
    origin = tf_amp.loss_scale_state(loss_scale).overflow_origin
    assert (origin.kind, origin.dtype, origin.is_gradient) == (
        "MatMul",
        "float16",
        False,
    )
    assert "second" in origin.layer and "second" in origin.op
    # Four steps overflow for one and the same reason, which is told once.
    assert len([line for line in told if "not finite first" in line]) == 1
    for was, weight in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(was, weight.numpy())


@pytest.fixture
def looking_later(monkeypatch):
    """Return an event that overflows wait for, and how the waits ended."""
    has_gone_on, waited = threading.Event(), []
    find = overflow_origin.Watch._find

    def find_later(watch, *args):
        waited.append(has_gone_on.wait(30))
        find(watch, *args)

    monkeypatch.setattr(overflow_origin.Watch, "_find", find_later)
    return has_gone_on, waited


def test_the_layer_is_named_in_a_session_that_goes_on_meanwhile(told, looking_later):
    has_gone_on, waited = looking_later
    loss_scale, scope = scaling()
    with tf.Graph().as_default(), scope:
        x = v1.placeholder(tf.float32, [None, 8])
        weights = [v1.get_variable(n, [8, 8], use_resource=True) for n in "abc"]
        loss = three_layers(x, [tf.abs(w) + 1.0 for w in weights])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.graph.finalize()
            session.run(train, {x: ONES})
            has_gone_on.set()
    origin = overflow_origin.latest_origin(loss_scale)
    assert (origin.op, origin.layer) == ("layer2/MatMul", "layer2")
    assert origin.dtype == "float16"
    assert waited == [True]


def test_at_the_minimum_a_session_goes_on_in_float32(told):
    _, scope = scaling(initial=1.0, at_minimum="float32")
    with tf.Graph().as_default(), scope:
        x = v1.placeholder(tf.float32, [None, 8])
        ones = v1.ones_initializer()
        weights = [
            v1.get_variable(n, [8, 8], initializer=ones, use_resource=True)
            for n in "abc"
        ]
        loss = three_layers(x, weights)
        train = v1.train.GradientDescentOptimizer(1e-9).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.graph.finalize()
            losses = [session.run([loss, train], {x: ONES})[0] for _ in range(3)]
            assert session.run(weights[0])[0, 0] < 1.0
    assert np.isinf(losses[0])
    np.testing.assert_allclose(losses[1:], 4.608e7, rtol=1e-2)
    assert len([line for line in told if "back to float32" in line]) == 1


def test_a_gradient_is_distinguished_though_its_function_is_gone(told, looking_later):
    is_gone, waited = looking_later
    for initial in (2.0**15, 2.0**20):
        is_gone.clear()
        loss_scale, scope = scaling(initial=initial)
        with scope:
            training_step(ones(3), planted=None)(tf.constant(ONES))
        gc.collect()
        is_gone.set()
        origin = overflow_origin.latest_origin(loss_scale)
        assert origin.is_gradient
        assert "layer3/MatMul" in origin.op
        assert origin.dtype == "float16"
    assert waited == [True, True]


def test_a_loss_scale_that_is_itself_infinite_is_to_blame(told):
    class Runaway(LossScale):
        def initial_state(self):
            return {"scale": float("inf")}

    loss_scale = Runaway()
    weights = ones(3)
    with tf_amp.mixed_precision_scope("float16", loss_scale=loss_scale, opt_level="O2"):
        training_step(weights, planted=None)(tf.constant(ONES))
    origin = overflow_origin.latest_origin(loss_scale)
    assert (origin.op, origin.is_gradient) == ("the loss scale", True)


def test_a_mask_of_minus_infinity_is_not_to_blame(told):
    loss_scale, scope = scaling()
    weights = ones(2)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            mask = tf.constant([0.0] * 7 + [float("-inf")])
            with tf.name_scope("attention"):
                y = tf.nn.softmax(tf.matmul(x, weights[0]) + mask)
            with tf.name_scope("culprit"):
                y = tf.matmul(y * 3e4, weights[1] * 3e4)
        return tape.gradient(y, weights)

    with scope:
        step(tf.constant(ONES))
    assert overflow_origin.latest_origin(loss_scale).layer == "culprit"


def test_a_step_without_overflow_has_no_origin_and_hands_nothing_over(monkeypatch):
    records = []
    record = overflow_origin.Watch.record

    def record_and_count(watch, *inputs):
        records.append(inputs)
        record(watch, *inputs)

    monkeypatch.setattr(overflow_origin.Watch, "record", record_and_count)
    loss_scale, scope = scaling()
    weights = ones(3)
    with scope:
        step = training_step(weights, planted=None)
        for _ in range(3):
            step(tf.constant(ONES))
        assert records == []
        assert overflow_origin.latest_origin(loss_scale) is None
        step(tf.constant(ONES * np.float32("inf")))
    assert len(records) == 1


def looked_into(monkeypatch):
    """Return a list that each overflow is added to once it is looked into."""
    looked = []
    find = overflow_origin.Watch._find
    monkeypatch.setattr(
        overflow_origin.Watch,
        "_find",
        lambda watch, *args: (looked.append(watch), find(watch, *args)),
    )
    return looked


def test_few_of_many_overflows_are_looked_into(monkeypatch):
    looked = looked_into(monkeypatch)
    loss_scale, scope = scaling()
    weights = ones(3)
    with scope:
        step = training_step(weights)
        for _ in range(9):
            step(tf.constant(ONES))
    assert overflow_origin.latest_origin(loss_scale).layer == "layer2"
    assert len(looked) == 4
    assert tf_amp.loss_scale_state(loss_scale).skipped_steps == 9


def test_at_the_minimum_each_new_origin_goes_back_to_float32_once(told):
    loss_scale, scope = scaling(initial=1.0, at_minimum="float32")
    weights = ones(3)

    @tf.function
    def step(x, by):
        with tf.GradientTape() as tape:
            y = x
            for number, weight in enumerate(weights, start=1):
                with tf.name_scope(f"layer{number}"):
                    factor = by[number - 1]
                    y = tf.nn.relu(tf.matmul(y * factor, weight * factor)) / factor**2
            loss = tf.reduce_mean(y * y)
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-9 * slope)
        return loss

    losses = []
    with scope:
        for planted in (1, 1, 0, 0, 2, 2):
            by = np.ones([3], "float32")
            by[planted] = 300.0
            losses.append(float(step(tf.constant(ONES / 8), tf.constant(by))))
            overflow_origin.latest_origin(loss_scale)
    # One step each leads to the decision, and none is traced again.
    assert step.experimental_get_tracing_count() == 1
    assert np.isinf(losses[::2]).all()
    np.testing.assert_allclose(losses[1::2], 64.0**2, rtol=1e-2)
    assert tf_amp.loss_scale_state(loss_scale).skipped_steps == 3
    said = [line for line in told if "back to float32" in line]
    for number, line in zip((2, 1, 3), said, strict=True):
        assert f"layer{number}/MatMul" in line
    low = {r.slot.node for r in tf_amp.plans()[-1].decisions if r.is_low}
    assert not {f"layer{number}/MatMul" for number in (1, 2, 3)} & low


def test_at_the_minimum_few_overflows_are_looked_into_that_nothing_helps(monkeypatch):
    looked = looked_into(monkeypatch)
    loss_scale, scope = scaling(initial=1.0, at_minimum="float32")
    weights = ones(2)
    with scope:
        step = training_step(weights, planted=None)
        for _ in range(9):
            step(tf.constant(ONES * np.float32("inf")))
            overflow_origin.latest_origin(loss_scale)
    # The first sends back what it can, the second the product by the name that it has
    # where it is not fused, the third finds no more; 4th and 8th.
    assert len(looked) <= 5


@pytest.mark.parametrize("at_minimum", ["warn", "raise", "float32"])
def test_at_the_minimum_nothing_is_done_under_xla_and_said_if_it_was_asked_for(
    at_minimum, monkeypatch
):
    told = []

    def log_first_n(level, message, count, *args):
        told.append(message % args)

    monkeypatch.setattr(logging, "log_first_n", log_first_n)
    loss_scale, scope = scaling(initial=1.0, at_minimum=at_minimum)

    @tf.function(jit_compile=True)
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    with scope:
        assert float(slope(tf.constant(np.inf))) == np.inf
    assert tf_amp.loss_scale_state(loss_scale).skipped_steps == 1
    said = [line for line in told if f"at_minimum={at_minimum!r} has no effect" in line]
    assert len(said) == (at_minimum != "warn")


def test_of_thousands_of_retraces_the_latest_graphs_and_origins_are_kept(told):
    class Blamed:
        """What looking into an overflow finds, without a step."""

        def __init__(self, number):
            self.node = NodeDef(name=f"op_{number}", op="MatMul")

        def first_not_finite(self):
            return NotFinite(self.node, "float16")

    graph = tf.Graph()
    watches = [overflow_origin.Watch(graph, LossScale()) for _ in range(2000)]
    numbers = [watched.number for watched in watches]
    for number, watched in enumerate(watches):
        watched.keep_graph(b"given", b"running")
        watched._find(b"", Blamed(number), None, 1)
    first, last = watches[0], watches[-1]
    assert last._graphs() == (b"given", b"running")
    assert first._graphs() == (b"", b"")
    assert overflow_origin.latest_origin(last._loss_scale).op == "op_1999"
    assert overflow_origin.latest_origin(first._loss_scale) is None
    kept = [overflow_origin._graphs, overflow_origin._latest]
    assert max(map(len, kept)) <= 256
    del watches, watched, first, last
    gc.collect()
    assert not any(number in overflow_origin._graphs for number in numbers)


def test_a_diagnosis_that_fails_does_not_fail_the_step(monkeypatch):
    def fail(*args):
        raise RuntimeError("no replay today")

    monkeypatch.setattr(overflow_origin.Watch, "_look_into", fail)
    _, scope = scaling()
    weights = ones(3)
    with scope:
        assert np.isinf(training_step(weights)(tf.constant(ONES)))
    np.testing.assert_array_equal(weights[0], np.ones([8, 8]))


def test_a_program_that_ends_while_an_overflow_is_looked_into_ends_well():
    done = run_python(
        """
        import numpy as np
        import tensorflow as tf
        import tf_amp

        tf_amp.enable("float16", opt_level="O2")
        w = tf.Variable(tf.ones([64, 64]))
        optimizer = tf.keras.optimizers.SGD()

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w) @ w)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        step(tf.fill([8, 64], 6e4))
        """
    )
    assert (done.code, "not finite first" in done.err) == (0, True), done.err
