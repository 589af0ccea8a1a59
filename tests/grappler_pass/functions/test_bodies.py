"""Functions that a graph calls, each as an item of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.annotations import BARRIER
from grappler_pass.functions.bodies import (
    Body,
    PlanPart,
    bodies_of,
    merged,
    with_bodies,
)
from grappler_pass.functions.conversion import (
    callers_first,
    graph_from_function,
    library_of,
    rename_functions,
)
from grappler_pass.graph.frames import TRIP_COUNT_GUESS
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import draft_graph
from grappler_pass.planning.plan import Cause, Plan
from tests.rewriters import rewritten_by, settings_of
from tests.soundness import assert_valid, ops_with_dtype

LISTS = OpLists.for_dtype("bfloat16")
W = np.eye(8, dtype=np.float32)


def bodies(function, *specs: tf.TensorSpec) -> dict[str, Body]:
    """Return the bodies of a traced function by the beginnings of their names."""
    concrete = tf.function(function, autograph=True).get_concrete_function(*specs)
    graph_def = concrete.graph.as_graph_def()
    item = Item(fetch=tuple(t.op.name for t in concrete.outputs))
    found = bodies_of(graph_def, item, lambda: shapes_from_graph_def(graph_def), LISTS)
    return {body.name: body for body in found}


def named(found: Mapping[str, Body], beginning: str) -> Body:
    (body,) = [b for name, b in found.items() if name.startswith(beginning)]
    return body


def planned(body: Body) -> Plan:
    settings = settings_of("bfloat16", "O2")
    return draft_graph(body.graph_def, body.item, settings, shapes=body.shapes).plan


X = tf.TensorSpec((4, 8))


def gradient_of_a_loop(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in tf.range(6):
            y = tf.tanh(y @ W)
    return tape.gradient(y, x)


def test_a_loop_weighs_as_often_as_it_runs() -> None:
    def nested(x):
        for _ in tf.range(5):
            x = x @ W
            for _ in tf.range(3):
                x = tf.tanh(x @ W)
        return x

    found = bodies(nested, X)
    assert sorted(b.weight for b in found.values()) == [1.0, 5.0, 15.0]


def test_the_loop_of_a_gradient_runs_as_often_as_its_forward_loop() -> None:
    found = bodies(gradient_of_a_loop, X).values()
    assert sorted(b.weight for b in found) == [1.0, 6.0, 6.0]


@pytest.mark.parametrize(
    ("count", "bound", "weight"),
    [(9, 0.5, 9.0), (None, np.inf, TRIP_COUNT_GUESS)],
)
def test_a_value_compared_to_a_float_counts_no_iterations(
    count: int | None, bound: float, weight: float
) -> None:
    def looping(x):
        return tf.while_loop(
            lambda x: tf.reduce_max(x) < bound,
            lambda x: [tf.tanh(x @ W)],
            [x],
            maximum_iterations=count,
        )

    assert sorted(b.weight for b in bodies(looping, X).values()) == [1.0, weight]


def test_a_body_knows_the_shapes_it_is_called_with() -> None:
    def looping(x):
        return tf.while_loop(lambda y: True, lambda y: [y @ W], [x])

    body = named(bodies(looping, X), "while_body")
    shapes = body.shapes()
    product = next(n.name for n in body.graph_def.node if n.op == "MatMul")
    assert shapes[product] == ((4, 8),)


def test_a_variable_of_a_nested_function_has_its_shape() -> None:
    v = tf.Variable(W)
    inner = tf.function(lambda x: x @ v)
    concrete = tf.function(lambda x: inner(x)).get_concrete_function(X)
    from tf_amp.tracing.grappler_preview import graph_with_variables, kept_nodes

    graph_def = graph_with_variables(concrete.graph)
    found = bodies_of(
        graph_def,
        Item(fetch=kept_nodes(concrete.graph)),
        lambda: shapes_from_graph_def(graph_def),
        LISTS,
    )
    shapes = found[1].shapes()
    reads = [n.name for n in found[1].graph_def.node if n.op == "ReadVariableOp"]
    assert [shapes[name] for name in reads] == [((8, 8),)]


def test_functions_without_an_allow_op_are_left_out() -> None:
    def branching(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1.0, lambda: x @ W)

    names = list(bodies(branching, X))
    assert len(names) == 2 and names[1].startswith("cond_false")


def test_what_only_updates_a_variable_in_a_branch_is_its_update() -> None:
    v = tf.Variable(W)

    def update(x):
        gradient = tf.clip_by_value(x @ W, -1.0, 1.0) * 0.5
        tf.cond(
            tf.reduce_all(tf.math.is_finite(x)),
            lambda: v.assign_sub(gradient),
            lambda: v.read_value(),
        )

    plan = planned(bodies(update, tf.TensorSpec((8, 8)))[""])
    causes = {d.op: d.reason.cause for d in plan.decisions}
    assert causes["MatMul"] is Cause.FORCED
    assert causes["Mul"] is Cause.STATE_UPDATE
    assert causes["Maximum"] is Cause.STATE_UPDATE


def test_what_a_branch_also_returns_is_no_update_alone() -> None:
    v = tf.Variable(W)

    def update(x):
        gradient = (x @ W) * 0.5

        def apply():
            v.assign_sub(gradient)
            return gradient + 1.0

        return tf.cond(tf.reduce_sum(x) > 0, apply, lambda: gradient)

    body = bodies(update, tf.TensorSpec((8, 8)))[""]
    assert body.item.updates == ()


def marked(x: tf.Tensor) -> tf.Tensor:
    """Return a tensor behind a barrier."""
    y = x * 0.5
    y.op._set_attr(BARRIER, tf.compat.v1.AttrValue(b=True))
    return y


def test_a_barrier_holds_in_the_functions_called_behind_it() -> None:
    inner = tf.function(lambda g, w: (tf.tanh(g @ w), tf.tanh(w @ w)))
    found = bodies(lambda x, w: inner(marked(x @ w), w), X, tf.TensorSpec((8, 8)))
    body = named(found, "__inference")
    after = rewritten_by(body.graph_def, body.item, settings_of("bfloat16", "O2"))
    assert ops_with_dtype(after.graph_def, "bfloat16")["MatMul"] == 1


def test_a_barrier_in_a_function_holds_behind_its_call() -> None:
    inner = tf.function(lambda x: marked(x @ W))
    plan = planned(bodies(lambda x: tf.tanh(inner(x) @ W) @ W, X)[""])
    products = [d.reason.cause for d in plan.decisions if d.op == "MatMul"]
    assert products == [Cause.BARRIER] * 2


@pytest.mark.parametrize("again", [0, 1])
def test_functions_that_call_themselves_or_each_other_are_named_once(
    again: int,
) -> None:
    last = tf.function(lambda x: tf.tanh(x @ W))
    second = tf.function(lambda x: last(x) @ W)
    first = tf.function(lambda x: second(x) @ W)
    concrete = tf.function(lambda x: first(x)).get_concrete_function(X)
    graph_def = concrete.graph.as_graph_def()
    library = library_of(graph_def)
    names = callers_first(graph_def.node, library)
    assert len(names) == 3
    for node in library[names[1]].node_def:
        rename_functions(node, {names[2]: names[again]})
    assert callers_first(graph_def.node, library) == names[:2]


def test_rewritten_bodies_are_called_under_new_names_and_others_stay() -> None:
    def layer(x):
        for _ in tf.range(3):
            x = tf.tanh(x @ W)
        return x

    inner = tf.function(layer)
    outer = tf.function(lambda x: (inner(x), inner(x + 1.0)))
    concrete = outer.get_concrete_function(X)
    library = library_of(concrete.graph.as_graph_def())
    graph_def, item = graph_from_function(concrete.function_def, library)
    found = bodies_of(graph_def, item, lambda: shapes_from_graph_def(graph_def), LISTS)
    settings = settings_of("bfloat16", "O2")
    changed = {
        body.name: rewrite.graph_def
        for body in found
        if (rewrite := rewritten_by(body.graph_def, body.item, settings)).changed
    }
    (name,) = changed
    assert name.startswith("while_body")
    after = with_bodies(graph_def, changed, lambda name: f"{name}_low")
    assert_valid(after)
    new = library_of(after)
    calls = {n.attr["f"].func.name for n in after.node if "f" in n.attr}
    assert calls == {n for n in new if n.startswith("__inference")}
    assert all(n.endswith("_low") for n in calls)
    assert new[f"{name}_low"].signature.input_arg == library[name].signature.input_arg
    assert library == library_of(graph_def)


def test_plans_of_bodies_add_up() -> None:
    def looping(x):
        for _ in tf.range(5):
            x = tf.tanh(x @ W)
        return x @ W

    found = bodies(looping, X).values()
    parts = [PlanPart(each.name, each.weight, planned(each)) for each in found]
    plan = merged(parts)
    own, body = parts
    # The body is started with the graph that calls it.
    in_body = body.plan.seconds_before - body.plan.call_seconds
    seconds = own.plan.seconds_before + 5 * in_body
    assert plan.call_seconds == own.plan.call_seconds
    assert np.isclose(plan.seconds_before, seconds)
    assert len({d.slot for d in plan.decisions}) == len(plan.decisions)
    products = [d for d in plan.decisions if d.op == "MatMul"]
    assert {d.slot.node.partition("/")[0] for d in products} >= {body.name}


def test_parts_need_the_memory_of_the_largest_with_its_weights() -> None:
    small = Plan((), "bfloat16", peak_bytes_before=9, peak_bytes_after=5)
    large = dataclasses.replace(
        small, peak_bytes_before=8, peak_bytes_after=7, weight_bytes_after=2
    )
    parts = PlanPart("", 1.0, small), PlanPart("body", 4.0, large)
    plan = merged(parts)
    found = plan.peak_bytes_before, plan.peak_bytes_after, plan.weight_bytes_after
    assert found == (9, 7, 2)


def test_the_loop_of_a_gradient_knows_what_its_forward_loop_has_kept() -> None:
    found = bodies(gradient_of_a_loop, X)
    (body,) = [b for name, b in found.items() if "_grad_" in name]
    decisions = planned(body).decisions
    assert {d.shape for d in decisions if d.op == "TanhGrad"} == {(4, 8)}
