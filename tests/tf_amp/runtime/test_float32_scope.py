"""What is kept in float32 takes its gradients along, whatever computes them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.planning.plan import Cause

X = np.eye(8, dtype="float32")


@pytest.fixture(autouse=True)
def _enabled():
    tf_amp.enable(opt_level="O2")
    yield
    tf_amp.disable()


def products(plan=None):
    """Return the types of the products of a plan, by the start of the node's name."""
    plan = plan or tf_amp.plans()[-1]
    return {row.slot.node: row.dtype for row in plan.decisions if "MatMul" in row.op}


def kept(plan=None):
    return {name for name, dtype in products(plan).items() if dtype == "float32"}


def model(weight, inside, name="head"):
    """Return x @ w, then `inside` of it in float32, then @ w again."""

    def compute(x):
        y = tf.nn.tanh(tf.matmul(x, weight, name="body"))
        with tf_amp.float32_scope():
            y = inside(y, weight)
        return tf.nn.tanh(tf.matmul(y, weight, name="tail"))

    return compute


def by_tape(compute, weight):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(compute(x))
        return tape.gradient(loss, weight)

    step(tf.constant(X))
    return products()


def by_outer_tape(compute, weight):
    function = tf.function(lambda x: tf.reduce_sum(compute(x)))
    with tf.GradientTape() as tape:
        loss = function(tf.constant(X))
    tape.gradient(loss, weight)
    found = {}
    for plan in tf_amp.plans():
        found |= products(plan)
    return found


def by_graph(compute, _):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", [8, 8])
        x = tf.compat.v1.placeholder(tf.float32, [8, 8])
        gradient = tf.gradients(tf.reduce_sum(compute(x, weight)), weight)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(gradient, {x: X})
    return products()


def plain(x, weight):
    return tf.nn.tanh(tf.matmul(x, weight, name="head"))


def custom(x, weight):
    @tf.custom_gradient
    def product(x):
        def gradient(dy):
            return tf.matmul(dy, X, name="head_backwards")

        return tf.matmul(x, X, name="head"), gradient

    return product(x)


def loop(x, weight):
    return tf.while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, tf.matmul(y, weight, name="head")),
        [0, x],
        maximum_iterations=3,
    )[1]


@pytest.mark.parametrize("inside", [plain, custom, loop])
@pytest.mark.parametrize("way", [by_tape, by_outer_tape, by_graph])
def test_gradients_of_what_is_in_the_scope_stay_float32_too(way, inside):
    weight = tf.Variable(tf.ones([8, 8]))
    if way is by_graph:
        found = by_graph(lambda x, w: model(w, inside)(x), None)
    else:
        found = way(model(weight, inside), weight)
    heads = {name for name in found if "head" in name or "IdentityN" in name}
    others = set(found) - heads
    assert {found[name] for name in heads} == {"float32"}
    assert {found[name] for name in others} == {"bfloat16"}
    assert len(others) >= 5 and len(heads) >= 2


def fused_model(x, w, names=("dense/MatMul", "dense/BiasAdd", "dense/Relu")):
    product, biased, activated = names
    y = tf.matmul(x, w, name=product)
    y = tf.nn.bias_add(y, tf.ones([8]), name=biased)
    return tf.nn.relu(y, name=activated)


@pytest.mark.parametrize("is_inner", [False, True], ids=["own", "inlined"])
def test_a_fused_node_is_known_by_all_that_it_was_fused_from(is_inner):
    tf_amp.enable(opt_level="O2", exclude=["dense/MatMul$"])

    def compute(x):
        y = fused_model(x, X)
        other = ("wide/MatMul", "wide/BiasAdd", "wide/Relu")
        return fused_model(y, X, other)

    inner = tf.function(compute)
    function = tf.function(lambda x: inner(x) + 1.0) if is_inner else inner
    function(tf.constant(X))
    fused = [r for r in tf_amp.plans()[-1].decisions if r.op == "_FusedMatMul"]
    types = {row.slot.node.split("/")[-2]: row.dtype for row in fused}
    assert types == {"dense": "float32", "wide": "bfloat16"}
    assert [r.reason.detail for r in fused if not r.is_low] == ["dense/MatMul$"]


def test_a_part_of_a_fused_node_keeps_it_float32():
    def compute(x):
        with tf_amp.float32_scope():
            y = tf.matmul(x, X)
        y = tf.nn.relu(tf.nn.bias_add(y, tf.ones([8])))
        return tf.matmul(y, X, name="low")

    tf.function(compute)(tf.constant(X))
    assert products().pop("low") == "bfloat16"
    assert len(kept()) == 1


def test_a_pattern_finds_gradients_of_operations_without_a_scope_of_their_own():
    # The tape names gradients after the name scope, which here is that of both.
    tf_amp.enable(opt_level="O2", exclude=["scope/first$"])
    weight = tf.Variable(tf.ones([8, 8]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape, tf.name_scope("scope"):
            y = tf.raw_ops.MatMul(a=x, b=weight, name="first")
            y = tf.raw_ops.MatMul(a=tf.nn.tanh(y), b=weight, name="second")
        return tape.gradient(y, weight)

    step(tf.constant(X))
    assert sorted(products().values()).count("float32") == 2
    gradients = {n: d for n, d in products().items() if "gradient_tape" in n}
    assert sorted(gradients.values()) == ["bfloat16", "bfloat16", "float32"]


def test_second_derivatives_stay_float32_too():
    def compute(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                with tf_amp.float32_scope():
                    y = tf.matmul(tf.matmul(x, x), x)
                y = tf.reduce_sum(y)
            first = inner.gradient(y, x)
            penalty = tf.reduce_sum(first * first)
        return tf.nn.tanh(tf.matmul(outer.gradient(penalty, x), X, name="low"))

    tf.function(compute)(tf.constant(X))
    assert products().pop("low") == "bfloat16"
    assert len(kept()) == len(products()) - 1 > 5


def test_the_scopes_nest_and_need_no_switch():
    tf_amp.disable()
    with tf_amp.float32_scope():
        assert not tf_amp.is_enabled()
        with tf_amp.mixed_precision_scope(opt_level="O2"):
            tf.function(fused_model)(tf.constant(X), tf.constant(X))
            assert not kept()

    @tf_amp.float32_scope()
    def head(x):
        return tf.matmul(x, X, name="head")

    with tf_amp.mixed_precision_scope(opt_level="O2"):
        tf.function(lambda x: tf.matmul(head(x), X))(tf.constant(X))
    assert kept() == {"head"}


def test_what_is_excluded_stays_so_in_a_saved_graph():
    def compute(x):
        with tf_amp.float32_scope():
            y = tf.matmul(x, X, name="head")
        return tf.matmul(y, X, name="tail")

    spec = tf.TensorSpec([8, 8])
    concrete = tf.function(compute).get_concrete_function(spec)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [8, 8])
        imported = tf.import_graph_def(
            concrete.graph.as_graph_def(), {"x": x}, ["tail:0"], name="again"
        )
        session.run(tf.nn.tanh(imported[0]), {x: X})
    assert products() == {"again/head": "float32", "again/tail": "bfloat16"}


def why_of(plan, op):
    """Return the reasons of the rows of an op that are the user's or our own."""
    of_somebody = (Cause.EXCLUDED, Cause.OWN)
    rows = [row for row in plan.decisions if row.reason.cause in of_somebody]
    return {str(row.reason) for row in rows if row.op == op}


def test_a_plan_says_who_has_asked_for_float32():
    layer = keras.layers.Dense(8, name="mine", use_bias=False)
    tf_amp.enable(opt_level="O2", dtype="float16", exclude=[layer])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tf_amp.float32_scope():
                y = tf.tanh(x @ x)
            loss = tf.reduce_sum(layer(y))
        return tape.gradient(loss, x)

    plan = tf_amp.explain(step, tf.TensorSpec((8, 8)))
    by_user = "excluded from 16 bits: "
    assert why_of(plan, "Tanh") == {f"{by_user}float32_scope()"}
    assert why_of(plan, "TanhGrad") == {f"{by_user}float32_scope()"}
    assert f"{by_user}layer mine" in why_of(plan, "MatMul")


def test_nobody_has_excluded_the_loss_scale():
    tf_amp.enable(opt_level="O2", dtype="float16", loss_scale="dynamic")
    weight = tf.Variable(X)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ weight)
        return tape.gradient(loss, weight)

    plan = tf_amp.explain(step, tf.TensorSpec((8, 8)))
    assert not plan.filter(reason="excluded").decisions
    assert why_of(plan, "Mul") == {f"{Cause.OWN.value}: the loss scale"}
