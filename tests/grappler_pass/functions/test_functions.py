"""Functions as graphs that the pass takes, and back."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework.attr_value_pb2 import NameAttrList
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.functions.conversion import (
    FunctionError,
    Known,
    function_from_graph,
    graph_from_function,
    library_of,
    reachable_from,
)
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Graph
from tests.random_graphs import random_graph
from tests.soundness import assert_valid


def bodies_of(function: tf.types.experimental.PolymorphicFunction, *specs: object):
    """Return a traced function, and all that it calls, by name."""
    concrete = function.get_concrete_function(*specs)
    library = library_of(concrete.graph.as_graph_def())
    own = concrete.function_def
    return {own.signature.name: own, **library}


def traced(function, *specs: tf.TensorSpec) -> FunctionDef:
    """Return a traced function that calls no other."""
    (only,) = bodies_of(tf.function(function), *specs).values()
    return only


def assert_comes_back(library: dict[str, FunctionDef]) -> None:
    for name, function in library.items():
        graph_def, _ = graph_from_function(function, library)
        assert_valid(graph_def)
        assert function_from_graph(graph_def, function) == function, name


def test_a_training_step_with_loops_branches_and_lists_comes_back_as_it_was():
    w = tf.Variable(tf.ones((4, 4)))
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build([w])

    @tf.function
    def inner(x):
        return tf.nn.relu(x @ w), *tf.split(x, 2)

    @tf.function(jit_compile=True)
    def step(x, n):
        with tf.GradientTape() as tape:
            y, left, _ = inner(x)
            for _ in tf.range(n):
                y = tf.tanh(y @ w)
            y = tf.cond(tf.reduce_sum(y) > 0, lambda: y @ w, lambda: 2 * y)
            y = tf.switch_case(n, [lambda: y, lambda: -y])
            loss = tf.reduce_sum(tf.map_fn(lambda row: row * 2, y)) + left[0, 0]
        optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w], strict=True))
        return loss, y

    specs = tf.TensorSpec((4, 4)), tf.TensorSpec((), tf.int32)
    library = bodies_of(step, *specs)
    assert len(library) > 10
    assert_comes_back(library)


def test_outputs_are_counted_across_arguments_of_several_tensors():
    def many(x):
        low, high = tf.raw_ops.Split(axis=0, value=x, num_split=2)
        count, total = tf.raw_ops.IdentityN(input=[tf.shape(x), low + high])
        mean, variance = tf.nn.moments(x, [0])
        _, indices = tf.math.top_k(x)
        values, where, _ = tf.unique_with_counts(tf.reshape(x, [-1]))
        return high, total, count, variance, mean, indices, where, values

    assert_comes_back(bodies_of(tf.function(many), tf.TensorSpec((4, 4))))


@given(st.integers(0, 10_000))
@settings(max_examples=6)
def test_functions_of_random_programs_come_back(seed: int):
    assert_comes_back(library_of(random_graph(seed).graph_def))


def test_arguments_and_results_are_held_and_side_effects_kept():
    v = tf.Variable(1.0)

    def add(x):
        v.assign_add(x)
        return 2 * x, x

    graph_def, item = graph_from_function(traced(add, tf.TensorSpec(())), {})
    view = Graph(graph_def, item)
    assert item.feed[0] == "x"
    assert [view.nodes[view.index[name]].op for name in item.fetch] == ["Identity"] * 2
    kept = {view.nodes[view.index[name]].op for name in item.preserve}
    assert "AssignAddVariableOp" in kept


def test_what_is_known_of_arguments_gives_every_node_its_shape():
    v = tf.Variable(tf.ones((8, 3)))
    function = traced(lambda x: x @ v, tf.TensorSpec((None, 8)))
    contents = ((tf.float32.as_datatype_enum, (8, 3)),)
    known = (Known((5, 8)), Known(contents=contents))
    graph_def, item = graph_from_function(function, {}, known)
    assert shapes_from_graph_def(graph_def)[item.fetch[0]] == ((5, 3),)


def test_an_argument_that_is_known_as_a_scalar_counts_as_one():
    specs = tf.TensorSpec((4, 4)), tf.TensorSpec(())
    function = traced(lambda x, factor: x * factor, *specs)
    function.ClearField("arg_attr")
    known = (Known((4, 4)), Known(()))
    graph_def, item = graph_from_function(function, {}, known)
    assert shapes_from_graph_def(graph_def)[item.fetch[0]] == ((4, 4),)


def test_a_new_node_in_front_of_a_result_is_part_of_the_body():
    function = traced(lambda x: tf.split(x, 2)[1], tf.TensorSpec((4,)))
    graph_def, item = graph_from_function(function, {})
    twice = graph_def.node.add(name="twice", op="Neg", input=["split:1"])
    twice.attr["T"].type = tf.float32.as_datatype_enum
    result = next(node for node in graph_def.node if node.name == item.fetch[0])
    result.input[0] = "twice"
    changed = function_from_graph(graph_def, function)
    assert changed.signature == function.signature
    assert list(changed.ret.values()) == ["twice:y:0"]
    assert changed.node_def[-1].input == ["split:output:1"]
    graph = GraphDef()
    graph.library.function.add().CopyFrom(changed)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(graph)
        call = tf.raw_ops.PartitionedCall(
            args=[tf.constant([1.0, 2.0, 3.0, 4.0])],
            Tout=[tf.float32],
            f=NameAttrList(name=changed.signature.name),
        )
        np.testing.assert_array_equal(session.run(call)[0], [-3.0, -4.0])


def test_only_what_is_called_comes_along():
    library = bodies_of(
        tf.function(lambda x: tf.while_loop(lambda x: x < 3, lambda x: x + 1, [x])),
        tf.TensorSpec(()),
    )
    names = set(library)
    library["stranger"] = FunctionDef()
    function = next(f for f in library.values() if f.signature.name.startswith("__inf"))
    found = set(reachable_from(function.node_def, library))
    assert len(found) == 2 and found < names


def test_what_is_not_a_function_of_fixed_types_is_named():
    function = FunctionDef()
    function.signature.name = "generic"
    function.signature.input_arg.add(name="x", type_attr="T")
    with pytest.raises(FunctionError, match=r"'generic'.*'x' depends on attributes"):
        graph_from_function(function, {})
    function.signature.input_arg[0].type = tf.float32.as_datatype_enum
    function.node_def.add(name="y", op="Neg", input=["z:y:0"])
    with pytest.raises(FunctionError, match="'generic' reads 'z:y:0'"):
        graph_from_function(function, {})
    with pytest.raises(FunctionError, match="no node x"):
        function_from_graph(GraphDef(), function)
