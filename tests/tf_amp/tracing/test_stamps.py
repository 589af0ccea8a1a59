"""Which settings a graph runs with: the stamps on its operations."""

import pathlib

import pytest
import tensorflow as tf
from google.protobuf import text_format

import tf_amp
from benchmarks.executed import count_executed
from grappler_pass.annotations import STAMP
from tests.printed_programs import PrintedProgram, programs_beside
from tf_amp.tracing.stamp_reader import Marks, marks_from_graph_def


def graph_def(*lines: str) -> tf.compat.v1.GraphDef:
    """Make a graph of lines "name op [stamp]"."""
    graph = tf.compat.v1.GraphDef()
    for line in lines:
        name, op, *stamp = line.split()
        node = graph.node.add(name=name, op=op)
        if stamp:
            text = f's: "{stamp[0]}"'
            text_format.Parse(text, node.attr[STAMP])
    return graph


def test_a_graph_without_stamps_has_no_settings():
    graph = graph_def("a Placeholder", "b MatMul")
    assert marks_from_graph_def(graph) == Marks(None, "")


def test_the_most_common_function_names_the_graph():
    graph = graph_def("a Placeholder A:outer", "b MatMul A:step", "c Relu A:step")
    assert marks_from_graph_def(graph) == Marks("A", "step")


def test_nodes_of_other_settings_are_strangers():
    graph = graph_def("a MatMul A:f", "b Relu A:f", "call/c MatMul B:g")
    assert marks_from_graph_def(graph) == Marks("A", "f", ("call/c",))


def test_what_grappler_made_belongs_to_the_scope_it_was_made_in():
    graph = graph_def(
        "x/dense/MatMul MatMul A:f",
        "x/dense/Relu Relu A:f",
        "x/Fold Const",
        "call/dense/ReadVariableOp ReadVariableOp B:g",
        "call/dense/BiasAdd _FusedMatMul",
        "call/dense/Cast/folded Const",
        "elsewhere Const",
    )
    assert marks_from_graph_def(graph) == Marks(
        "A",
        "f",
        ("call/dense/ReadVariableOp", "call/dense/BiasAdd", "call/dense/Cast/folded"),
    )


def test_a_fused_node_is_no_stranger_where_all_stamps_agree():
    graph = graph_def("x/r ReadVariableOp A:f", "x/BiasAdd _FusedMatMul", "y Const")
    assert marks_from_graph_def(graph) == Marks("A", "f")


def test_an_unstamped_product_was_traced_without_settings():
    graph = graph_def("a MatMul A:f", "b Relu A:f", "call/c MatMul", "call/d Relu")
    assert marks_from_graph_def(graph) == Marks("A", "f", ("call/c", "call/d"))


@pytest.mark.parametrize("program", programs_beside(__file__))
def test_a_program_prints_what_its_text_says(
    program: PrintedProgram, tmp_path: pathlib.Path
) -> None:
    program.check(tmp_path)


def test_equal_gradients_of_different_operations_are_still_made_once(
    disabled_afterwards,
):
    def shapes_in_step():
        w = tf.Variable(tf.ones([4, 4]))

        @tf.function(input_signature=[tf.TensorSpec([None, 4])])
        def step(x):
            with tf.GradientTape() as tape:
                y = x @ w
                loss = tf.reduce_sum(y) + 2.0 * tf.reduce_mean(y) + tf.norm(y)
            return tape.gradient(loss, w)

        return count_executed(lambda: step(tf.ones([2, 4])), "Shape")

    plain = shapes_in_step()
    tf_amp.enable("bfloat16", opt_level="O0")

    assert shapes_in_step() == plain
