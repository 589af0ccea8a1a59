"""Where a graph stays float32, its loss is not scaled unless that was asked for."""

import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.types_pb2 import DT_HALF

import tf_amp
from benchmarks.executed import count_executed, count_executed_ops
from grappler_pass.graph.view import Item
from grappler_pass.rewriting import loss_scales
from grappler_pass.rewriting.loss_scales import without_loss_scales
from tests.mirrored_programs import sections_of
from tests.soundness import assert_valid
from tests.text_graph import graph_from_text
from tests.ways_to_gradients import IN_FUNCTIONS
from tf_amp import loss_scale_state, mixed_precision_scope

W = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
BAD = X.copy()
BAD[0, 0] = math.inf
# What finds out whether gradients are finite, scales them, and skips steps.
FINDING = ("L2Loss", "IsFinite", "Reciprocal", "AssignAddVariableOp", "PyFunc")
# TensorFlow keeps the predicate of a branch that is known, and its end.
SCALING = {**dict.fromkeys(FINDING, 0), "Switch": 1, "Merge": 1}

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def stepper(w, optimizer=None):
    optimizer = optimizer or tf.keras.optimizers.SGD(0.125)
    optimizer.build([w])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ w) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    return step


def counted():
    # A loss scale of this test, rather than one of another test, is the latest.
    stepper(tf.Variable(W))(X)
    return latest_counts()


def latest_counts():
    state = loss_scale_state()
    return state.good_steps, state.skipped_steps


def counts_since(before):
    return tuple(now - then for now, then in zip(latest_counts(), before, strict=True))


def trained(inputs):
    w = tf.Variable(W)
    step = stepper(w)
    return [np.append(step(tf.constant(x)), w) for x in inputs]


def test_no_step_that_stays_float32_pays_for_a_loss_scale():
    tf_amp.enable(dtype="float16")
    before = counted()
    w = tf.Variable(W)
    step = stepper(w)

    found = {op: count_executed(lambda: stepper(w)(X), op) for op in SCALING}
    step(X)

    assert found == SCALING
    assert counts_since(before) == (0, 0)


def test_such_a_step_does_what_the_program_does_by_itself():
    plain = trained([X, BAD, X])
    tf_amp.enable(dtype="float16")
    before = counted()

    ours = trained([X, BAD, X])

    assert np.isnan(plain[-1]).any()
    np.testing.assert_array_equal(ours, plain)
    assert counts_since(before) == (0, 0)


def test_a_loss_scale_that_was_named_is_honored():
    tf_amp.enable(dtype="float16", loss_scale="dynamic")
    before = counted()

    ours = trained([X, BAD, X])

    assert np.isfinite(ours[-1]).all()
    assert counts_since(before)[1] == 1


def test_gradients_that_were_made_in_float16_are_checked_where_they_are_applied():
    tf_amp.enable(dtype="float16")
    w = tf.Variable(W)
    optimizer = tf.keras.optimizers.SGD(0.125)
    optimizer.build([w])

    def loss_gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w) ** 2)
        return tape.gradient(loss, w)

    @tf.function
    def apply(gradient):
        optimizer.apply_gradients([(gradient, w)])

    with mixed_precision_scope(dtype="float16", opt_level="O2"):
        low = tf.function(loss_gradient)
        assert count_executed_ops(lambda: low(X)).low
    before = counted()
    apply(low(X))
    begun = w.numpy()
    assert counts_since(before) == (1, 0)
    apply(low(BAD))
    assert counts_since(before)[1] == 1
    np.testing.assert_array_equal(w, begun)
    apply(low(X))
    assert not np.array_equal(w, begun)


def test_a_graph_without_its_loss_scale_never_goes_to_float16():
    from tf_amp.rewriting import arriving_graphs

    visits, original = [], arriving_graphs.rewrite_graph

    def noting(data, item):
        visits.append((data, original(data, item)))
        return visits[-1][1]

    arriving_graphs.rewrite_graph = noting
    try:
        tf_amp.enable(dtype="float16")
        stepper(tf.Variable(W))(X)
    finally:
        arriving_graphs.rewrite_graph = original
    (first, taken_out), *later = [v for v in visits if b"tf_amp_if_finite" in v[0]]

    assert b"_tf_amp_scale" in first
    assert taken_out is not None
    assert b"_tf_amp_rewritten" in taken_out
    assert later
    for given, rewritten in later:
        graph_def = GraphDef.FromString(rewritten or given)
        types = (v.type for node in graph_def.node for v in node.attr.values())
        assert DT_HALF not in types


@pytest.mark.parametrize("way", IN_FUNCTIONS, ids=lambda way: way.__name__)
def test_gradients_are_those_of_the_program_by_itself(way):
    # Of what is float16 in the program, 2^15 times the gradients are float16 numbers.
    w, x = tf.constant(W), tf.constant(X / 4)

    def found():
        # A function of its own, so that it is traced anew.
        results = tf.function(lambda w, x: way(w, x))(w, x)
        parts = [part for part in tf.nest.flatten(results) if part is not None]
        # NumPy 1.26 compares no bfloat16.
        return [
            np.array(tf.cast(part, tf.float32) if part.dtype == tf.bfloat16 else part)
            for part in parts
        ]

    plain = found()
    tf_amp.enable(dtype="float16")

    for ours, expected in zip(found(), plain, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_finite", [True, False])
def test_steps_in_loops_and_branches_do_what_they_do_by_themselves(is_finite):
    def weights_after():
        w = tf.Variable(W)
        optimizer = tf.keras.optimizers.Adam(0.125)
        optimizer.build([w])

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(x @ w) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        @tf.function
        def steps(x):
            for i in tf.range(4):
                if i % 2 == 0:
                    step(x)
                step(x)

        steps(tf.constant(X if is_finite else BAD))
        return w.numpy()

    plain = weights_after()
    tf_amp.enable(dtype="float16")
    before = counted()

    np.testing.assert_array_equal(weights_after(), plain)
    assert np.isfinite(plain).all() == is_finite
    assert counts_since(before) == (0, 0)


def test_a_loss_scale_in_a_session_goes_where_its_graph_stays_float32():
    v1 = tf.compat.v1

    def weights_after(inputs, counts):
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [4, 8])
            w = v1.get_variable("w", initializer=W)
            loss = tf.reduce_mean(tf.tanh(x @ w) ** 2)
            train = v1.train.AdamOptimizer(0.125).minimize(loss)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                for value in inputs:
                    session.run(train, {x: value})
                counts.append(_counts(session))
                return session.run(w)

    def _counts(session):
        if not scales:
            return None
        state = loss_scale_state(session=session)
        return state.good_steps, state.skipped_steps

    scales, counts = False, []
    plain = [weights_after(inputs, counts) for inputs in ([X, X], [X, BAD])]
    tf_amp.enable(dtype="float16")
    scales = True
    ours = [weights_after(inputs, counts) for inputs in ([X, X], [X, BAD])]

    np.testing.assert_array_equal(ours, plain)
    assert counts[2:] == [(0, 0)] * 2


REPLICAS = """
def weights_of(strategy, dtype):
    if dtype:
        tf_amp.enable(dtype=dtype)
    else:
        tf_amp.disable()
    with strategy.scope():
        model = build()
    bad = X.copy()
    bad[40] = math.inf
    for x in (X, bad):
        data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(32)
        model.fit(data, verbose=0)
        yield model.get_weights()

for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy()):
    each = [list(weights_of(strategy, dtype)) for dtype in (None, "float16")]
    for is_finite, plain, ours in zip((True, False), *each, strict=True):
        pairs = list(zip(plain, ours, strict=True))
        print(
            all(np.isfinite(a).all() for a in plain) == is_finite,
            all(np.allclose(a, b, atol=1e-6, equal_nan=True) for a, b in pairs),
            tf_amp.loss_scale_state().good_steps,
            tf_amp.loss_scale_state().skipped_steps,
        )
"""


def test_fit_trains_as_by_itself_on_one_device_and_on_two():
    found = sections_of({"fit": REPLICAS})["fit"]

    assert [row for row in found if "LOGGED" not in row] == ["True True 0 0"] * 4


GRAPH = """
    read = ReadVariableOp(state) _tf_amp_loss_scale=true
    state = Placeholder dtype=resource
    scale = Unpack(read) num=1 T=float _tf_amp_scale=0
    seed = Placeholder
    scaled = Mul(seed, scale)
    gradient = Neg(scaled)
    inverse = Reciprocal(scale)
    unscaled = Mul(gradient, inverse) _tf_amp_barrier=true
    tf_amp_scale_update/finite = IsFinite(unscaled)
    tf_amp_scale_update/out = Identity(tf_amp_scale_update/finite) T=bool
    chosen = Switch(unscaled, tf_amp_scale_update/out)
    out = Identity(chosen:1, ^tf_amp_scale_update/out)
"""


def test_a_scale_becomes_1_a_flag_true_and_the_rest_waits_as_before():
    given = graph_from_text(GRAPH)
    before = given.SerializeToString()

    after = without_loss_scales(given, Item(fetch=("out",)))

    assert given.SerializeToString() == before
    assert_valid(after)
    nodes = {node.name: list(node.input) for node in after.node}
    assert nodes["scaled"] == ["seed", "scale/one"]
    assert nodes["inverse"] == ["scale/one"]
    assert nodes["chosen"] == ["unscaled", "tf_amp_finite/0"]
    assert nodes["out"] == ["chosen:1", "^tf_amp_finite/0"]
    assert nodes["tf_amp_finite/0"] == ["^unscaled"]
    assert nodes["scale/one"] == ["^read"]
    assert not any("scale_update" in name for name in nodes)


def test_what_waits_for_an_update_is_sought_once_however_many_nodes_wait(monkeypatch):
    asked = []
    texts_of = loss_scales.texts_of
    monkeypatch.setattr(
        loss_scales, "texts_of", lambda node: (asked.append(node), texts_of(node))[1]
    )

    def work(count):
        """Return how often inputs are looked at for so long an update, and readers."""
        update = "tf_amp_scale_update"
        steps = [f"{update}/{i} = NoOp(^{update}/{i - 1})" for i in range(1, count)]
        steps = [f"{update}/0 = NoOp(^{update}/out)", *steps]
        waiting = [f"n{i} = Neg(seed, ^{update}/{count - 1})" for i in range(count)]
        asked.clear()
        given = graph_from_text("\n".join([GRAPH, *steps, *waiting]))
        assert without_loss_scales(given, Item(fetch=("out",))) is not None
        return len(asked)

    assert work(80) < 5 * work(20)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("_tf_amp_scale=0", "_tf_amp_scale=-1"),
        ("Mul(gradient, inverse)", "Mul(gradient, seed)"),
        ("seed = Placeholder", "seed = Placeholder\n other = Neg(read)"),
        ("Identity(chosen:1", "Identity(tf_amp_scale_update/other"),
    ],
)
def test_a_loss_scale_of_which_a_part_is_elsewhere_stays(line, instead):
    text = GRAPH.replace(line, instead)
    text += "\n tf_amp_scale_update/other = Abs(unscaled)"
    assert line in GRAPH

    assert without_loss_scales(graph_from_text(text), Item(fetch=("out",))) is None


def test_a_loss_scale_stays_where_functions_are_called():
    given = graph_from_text(GRAPH)
    given.node[2].attr["f"].func.name = "gradient_of_something"

    assert without_loss_scales(given, Item(fetch=("out",))) is None


@pytest.mark.parametrize("factor", [2.0**15, tf.Variable(2.0**15, trainable=False)])
def test_nor_does_one_that_scales_its_loss_itself(factor):
    def step_of(w):
        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.tanh(x @ w) ** 2) * factor
            w.assign_sub(tape.gradient(loss, w) / factor)

        return step

    plain, w = tf.Variable(W), tf.Variable(W)
    step_of(plain)(X)
    tf_amp.enable(dtype="float16")
    found = {op: count_executed(lambda: step_of(w)(X), op) for op in FINDING}

    assert found == dict.fromkeys(FINDING, 0)
    w.assign(W)
    step_of(w)(X)
    np.testing.assert_array_equal(w, plain)
