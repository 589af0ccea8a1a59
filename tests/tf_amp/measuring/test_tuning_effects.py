"""What has effects is never run by a measurement."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.probe_samples import measure, probe, probe_of_op
from tf_amp.measuring.sandbox.runnable import check_runnable
from tf_amp.measuring.sandbox.synthetic import UnfitError

calls = []


def _count(value):
    calls.append(value)
    return value


def numpy_function(stateful):
    return lambda: tf.numpy_function(_count, [tf.ones([2])], tf.float32, stateful)


def eager_function():
    tf.py_function(_count, [tf.ones([2])], tf.float32)


def function_that_counts():
    counting = tf.function(
        lambda x: tf.numpy_function(_count, [x], tf.float32, stateful=False)
    )
    concrete = counting.get_concrete_function(tf.TensorSpec([2]))
    concrete.add_to_graph()
    tf.raw_ops.PartitionedCall(args=[tf.ones([2])], Tout=[tf.float32], f=concrete)


def assignment():
    value = tf.compat.v1.Variable(tf.ones([2]), use_resource=False)
    tf.raw_ops.Assign(ref=value._ref(), value=tf.ones([2]))


def resource_assignment():
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2])
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones([2]))


def printing():
    tf.raw_ops.Print(input=tf.ones([2]), data=[tf.ones([2])], message="printed")


def debugging():
    tf.raw_ops.DebugIdentityV2(input=tf.ones([2]))


def counting_nans():
    tf.raw_ops.DebugNanCount(input=tf.ones([2]))


WITH_EFFECTS = {
    "numpy_function": numpy_function(True),
    "stateless numpy_function": numpy_function(False),
    "py_function": eager_function,
    "PartitionedCall": function_that_counts,
    "Assign": assignment,
    "AssignVariableOp": resource_assignment,
    "Print": printing,
    "DebugIdentityV2": debugging,
    "DebugNanCount": counting_nans,
    "RandomUniform": lambda: tf.raw_ops.RandomUniform(
        shape=tf.constant([2]), dtype=tf.float32
    ),
    "PrintV2": lambda: tf.raw_ops.PrintV2(input=tf.constant("printed")),
    "WriteFile": lambda: tf.raw_ops.WriteFile(
        filename=tf.constant("/tmp/never-written-by-tf-amp"), contents="text"
    ),
    "Assert": lambda: tf.raw_ops.Assert(
        condition=tf.constant(False), data=[tf.ones([2])]
    ),
}


@pytest.mark.parametrize("name", sorted(WITH_EFFECTS))
def test_what_has_effects_is_never_run(name, capfd):
    given = probe_of_op(WITH_EFFECTS[name])
    calls.clear()
    assert measure(given, ("float32",), "/CPU:0", 0.5) == ()
    assert calls == []
    assert "printed" not in capfd.readouterr().err
    assert not tf.io.gfile.exists("/tmp/never-written-by-tf-amp")
    with pytest.raises(UnfitError):
        check_runnable(given, "float32", "CPU")


def test_a_convolution_gradient_without_a_rank_is_never_run():
    # TensorFlow ends the process on it.
    lost = probe(
        "Conv2DBackpropFilter",
        (2, 8, 8, 3),
        (),
        constants=((3, 3, 3, 4),),
        strides="list { i: [1, 1, 1, 1] }",
        padding='s: "SAME"',
    )
    with pytest.raises(UnfitError, match="rank"):
        check_runnable(lost, "float32", "CPU")


def test_a_counted_call_would_be_noticed():
    calls.clear()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(tf.numpy_function(_count, [tf.ones([2])], tf.float32, False))
    assert len(calls) == 1
