"""How much time and memory it takes to run steps of a graph in a sandbox."""

import pytest
import tensorflow as tf

from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Trial
from tf_amp.run.graph_copy import NotRunnableError
from tf_amp.tools import prediction as predicting


def _trial(graph_def, result, before, after):
    """Return a graph against itself, with the seconds predicted of both."""
    item, shapes = Item(fetch=(result.op.name,)), shapes_from_graph_def(graph_def)
    return Trial(graph_def, graph_def, item, shapes, before, after)


def test_a_loop_without_end_is_given_up():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 4])
        result = tf.while_loop(lambda y: y[0, 0] > -9.0, lambda y: [y * 1.0], [x])[0]
    trial = _trial(graph.as_graph_def(), result, 1e-3, 1e-3)
    with pytest.raises(NotRunnableError):
        predicting._compared(predicting.sandboxes_of(trial), 1.0)


def test_variables_that_would_fill_the_memory_are_not_copied():
    with tf.Graph().as_default() as graph:
        table = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[1 << 20, 1 << 18])
        rows = tf.raw_ops.ResourceGather(
            resource=table, indices=[1, 2], dtype=tf.float32
        )
    trial = _trial(graph.as_graph_def(), rows, 1e-3, 1e-3)
    with pytest.raises(NotRunnableError, match="MiB"):
        predicting._compared(predicting.sandboxes_of(trial), 1.0)
