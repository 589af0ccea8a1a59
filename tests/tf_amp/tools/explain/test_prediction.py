"""What is predicted of a graph is shown next to what it takes."""

import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Trial
from grappler_pass.planning.plan import Plan
from grappler_pass.planning.prices import NODE_SECONDS
from tf_amp.errors import NotMeasurableError
from tf_amp.run.graph_copy import NotRunnableError
from tf_amp.tools import prediction as predicting
from tf_amp.tools.prediction import ADDED_CASTS, OpTimes, Prediction, Times

# No CPU multiplies two matrices of 512 by 512 float32 at 20 TFLOP/s.
LEAST_SECONDS = 2 * 512**3 / 20e12


@pytest.fixture(scope="module")
def measured():
    """Return the prediction of a step with products, an update and a side effect."""
    weight = tf.Variable(tf.ones([512, 512]))

    @tf.function
    def step():
        loss = tf.reduce_sum(tf.tanh(tf.ones([512, 512]) * weight @ weight))
        weight.assign_sub(tf.ones([512, 512]) * loss)
        return loss

    prediction = tf_amp.explain(step, measure=True)
    assert (weight.numpy() == 1.0).all()
    return prediction


def test_whole_steps_are_predicted_and_measured(measured):
    for times in (measured.float32, measured.mixed):
        assert LEAST_SECONDS < times.measured_seconds < 1.0
        assert times.ratio == times.predicted_seconds / times.measured_seconds
    assert measured.float32.predicted_seconds == measured.plan.seconds_before
    assert measured.mixed.predicted_seconds == measured.plan.seconds_after
    assert measured.pairs >= 2


def test_ops_are_predicted_and_measured(measured):
    ops = {row.op: row for row in measured.ops}
    assert ops["MatMul"].nodes == 1
    product, moved = ops["MatMul"].float32, ops["Identity"].float32
    assert LEAST_SECONDS < product.predicted_seconds < measured.plan.seconds_before
    assert LEAST_SECONDS < product.measured_seconds < 1.0
    assert product.measured_seconds > 10 * moved.measured_seconds
    update = ops["AssignSubVariableOp"].mixed
    assert moved.measured_seconds < update.measured_seconds < 1.0
    assert (ADDED_CASTS in ops) == (measured.plan.casts > 0)


def test_predicted_ops_nodes_and_the_call_add_up_to_the_step(measured):
    beside = []
    for precision in ("float32", "mixed"):
        parts = sum(getattr(row, precision).predicted_seconds for row in measured.ops)
        whole = getattr(measured, precision).predicted_seconds
        beside.append(whole - parts - measured.plan.call_seconds)
    nodes = round(beside[0] / NODE_SECONDS)
    assert nodes >= sum(row.nodes for row in measured.ops if row.op != ADDED_CASTS)
    assert beside == pytest.approx([nodes * NODE_SECONDS] * 2)


def test_a_prediction_prints_plan_ops_and_misses(measured):
    text = str(measured.top(3))
    assert measured.plan.summary() in text
    assert "whole step" in text
    assert "f32 predicted ms" in text and "mixed measured ms" in text
    assert f"Predictions were off most for {measured.top(3).misses()[0].op}" in text


def test_parts_of_a_split_op_count_for_it_and_not_as_casts():
    kernel, bias = tf.ones([3, 3, 32, 32]), tf.ones([32])

    @tf.function
    def net(x):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))

    # Its fused kernel does not take float16 on a CPU.
    with tf_amp.mixed_precision_scope("float16", opt_level="O2"):
        prediction = tf_amp.explain(net, tf.ones([4, 64, 64, 32]), measure=True)
    ops = {row.op: row.mixed.measured_seconds for row in prediction.ops}
    assert ops["_FusedConv2D"] > 5 * ops[ADDED_CASTS] > 0.0


def test_an_empty_plan_takes_the_same_time_either_way():
    prediction = tf_amp.explain(lambda x: x + 1.0, tf.TensorSpec([8, 8]), measure=True)
    assert prediction.plan.is_empty
    assert prediction.float32.measured_seconds == prediction.mixed.measured_seconds
    assert prediction.measured_speedup == 1.0


def test_what_cannot_be_run_in_own_thread_is_said_by_name():
    with pytest.raises(NotMeasurableError, match="riddle"):
        tf_amp.explain(
            tf.function(lambda riddle: tf.matmul(riddle, riddle)),
            tf.TensorSpec(None, name="riddle"),
            measure=True,
        )


def test_misses_are_ranked_by_the_worse_of_both_precisions():
    good = Times(1.0, 1.0)
    rows = (
        OpTimes("Good", 1, good, good),
        OpTimes("Bad", 1, good, Times(1.0, 5.0)),
        OpTimes("Odd", 1, Times(3.0, 1.0), good),
    )
    prediction = Prediction(Plan((), "bfloat16"), good, good, rows)
    assert [row.op for row in prediction.misses(2)] == ["Bad", "Odd"]


def test_a_row_prints_the_times_of_float32_before_those_mixed():
    float32, mixed = Times(1.0, 2.0), Times(4.0, 5.0)
    row = OpTimes("Exp", 3, float32, mixed)
    text = str(Prediction(Plan((), "bfloat16"), float32, mixed, (row,)))
    (found,) = (line.split() for line in text.splitlines() if line.startswith("Exp "))
    assert found[1:] == ["3", *"1000.000 2000.000 0.50 4000.000 5000.000 0.80".split()]


def test_nothing_measured_has_no_ratio():
    assert Times(1.0, 0.0).ratio is None
    assert Times(1.0, 2.0).ratio == 0.5


# How much time and memory it takes to run steps of a graph in a sandbox.


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
