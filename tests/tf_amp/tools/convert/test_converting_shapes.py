"""Shapes that prices of stored graphs are looked up at."""

import tensorflow as tf

from grappler_pass.functions.conversion import graph_from_function, library_of
from tf_amp.tools.convert.rewriting import stored_shapes


def test_the_rows_of_a_product_of_several_axes_follow_from_the_batch():
    weight = tf.ones([8, 32])

    @tf.function(input_signature=[tf.TensorSpec([None, 16, 8])])
    def dense(x):
        return tf.nn.relu(tf.tensordot(x, weight, 1))

    concrete = dense.get_concrete_function()
    library = library_of(concrete.graph.as_graph_def())
    graph_def, _ = graph_from_function(concrete.function_def, library)
    (product,) = (node.name for node in graph_def.node if node.op == "MatMul")
    (last,) = (node.name for node in graph_def.node if node.op == "Relu")
    assert stored_shapes(graph_def, 4)[product] == ((64, 32),)
    assert stored_shapes(graph_def, 4)[last] == ((4, 16, 32),)
    assert stored_shapes(graph_def)[product] == ((None, 32),)
