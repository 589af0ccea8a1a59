"""What a rewriting leaves as it is: other dtypes, exact ids, devices, exclusions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from grappler_pass.graph.view import Item
from tests.grappler_pass.rewriting.patterns import gradients_of, rewritten
from tests.rewriters import rewritten_by, settings_of
from tests.sketch import Sketch, sketch
from tests.soundness import LOW_DTYPES, assert_sound, colors
from tf_amp import mixed_precision_scope

both_dtypes = pytest.mark.parametrize("low_dtype", sorted(LOW_DTYPES))
_OTHERS = (
    types_pb2.DT_DOUBLE,
    types_pb2.DT_COMPLEX64,
    types_pb2.DT_STRING,
    types_pb2.DT_INT32,
)


@rewritten(levels=["O3"])
def test_other_dtypes_are_untouched(s: Sketch):
    x = s.feed(4, 8)
    double = tf.matmul(tf.cast(x, tf.float64), tf.ones([8, 8], tf.float64))
    complex_ = tf.abs(tf.complex(x, x) * tf.constant(1j, tf.complex64))
    text = tf.strings.join([tf.constant("a"), tf.constant("b")])
    whole = tf.matmul(tf.cast(x, tf.int32), tf.ones([8, 8], tf.int32))
    y = tf.matmul(x, s.weight(8, 8))
    program = s.program(double, complex_, text, whole, tf.identity(y))
    after, _ = yield program
    before = {n.name: n for n in program.graph_def.node}
    for node in after.node:
        for key, value in node.attr.items():
            if node.name in before and value.type in _OTHERS:
                assert before[node.name].attr[key] == value


@rewritten()
def test_integer_ids_beyond_2048_stay_exact(s: Sketch):
    ids = s.feed_value(np.array([[2049.0, 2051.0, 4097.0]], np.float32), "ids")
    table = tf.reshape(tf.range(5000, dtype=tf.float32), [5000, 1]) / 5000.0
    rows = tf.gather(table, tf.cast(ids[0], tf.int32))
    y = tf.matmul(rows, s.weight(1, 8)) + tf.matmul(ids, s.weight(3, 8, name="v"))
    return tf.cast(ids, tf.int32), y


@rewritten(colored={"allow1 clear1": "L L"})
def test_control_edges_classes_and_devices_are_kept(s: Sketch):
    x, w = s.feed(4, 8), s.weight(8, 8)
    counter = s.variable(2, name="counter")
    update = counter.assign_add([1.0, 1.0], read_value=False)
    with tf.control_dependencies([update]), tf.device("/device:CPU:0"):
        y = tf.matmul(x, w, name="allow1")
    with tf.compat.v1.colocate_with(y):
        z = tf.nn.relu(y, name="clear1")
    after, _ = yield s.program(tf.identity(z), steps=2)
    nodes = {node.name: node for node in after.node}
    assert nodes["allow1"].device == "/device:CPU:0"
    assert f"^{update.name}" in nodes["allow1"].input
    assert nodes["clear1"].attr["_class"].list.s == [b"loc:@allow1"]


@both_dtypes
def test_a_node_on_a_device_without_a_kernel_stays(low_dtype: str) -> None:
    with sketch() as s:
        with tf.device("/device:TPU:0"):
            y = tf.matmul(s.feed(4, 8), s.weight(8, 8), name="elsewhere")
        y = tf.matmul(y, s.weight(8, 8, name="v"), name="here")
        graph_def = s.graph.as_graph_def()
    item = Item(fetch=("here",), preserve=())

    def rewrite(given: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
        return rewritten_by(given, item, settings_of(low_dtype, "O2")).graph_def

    after = assert_sound(graph_def, rewrite, item)
    assert colors(after, "elsewhere") == "F"


@rewritten(
    colored={"allow1": "L"},
    given={
        "unknown": (None,),
        "two axes": ([None, None],),
        "some rows": ([None, 8],),
    },
)
def test_unknown_shapes_are_rewritten_as_well(s: Sketch, shape: object):
    x = s.feed_value(s.values(4, 8), "x", shape)
    return tf.reduce_sum(tf.tanh(tf.matmul(x, s.weight(8, 8), name="allow1")))


@rewritten(colored={"allow1 no_kernel allow2": "L F L"}, levels=["O3"])
def test_an_op_without_a_low_kernel_stays_float32(s: Sketch):
    y = tf.matmul(s.feed(4, 4), s.weight(4, 4), name="allow1")
    y = tf.math.igamma(y * y + 1.0, y * y + 2.0, name="no_kernel")
    return tf.matmul(y, s.weight(4, 4, name="v"), name="allow2")


@both_dtypes
def test_an_exclusion_holds_for_gradients_too(low_dtype: str) -> None:
    with sketch() as s:
        with tf.name_scope("head"):
            y = tf.matmul(s.feed(4, 8), s.weight(8, 8))
        y = tf.matmul(tf.tanh(y), s.weight(8, 8, name="v"))
        loss = tf.reduce_sum(tf.square(y))
        program = s.program(*gradients_of(loss))
    settings = settings_of(low_dtype, "O2", exclude=(r"\bhead\b",))
    after = rewritten_by(program.graph_def, program.item, settings).graph_def
    low = {n.name for n in after.node if n.op == "MatMul" and n.attr["T"].type != 1}
    assert low
    assert not any("head" in name for name in low)


@pytest.mark.usefixtures("disabled_afterwards")
@both_dtypes
def test_a_session_may_feed_a_constant(low_dtype: str) -> None:
    v1 = tf.compat.v1
    eye = np.eye(8, dtype=np.float32)
    graph = tf.Graph()
    with graph.as_default(), mixed_precision_scope(dtype=low_dtype, opt_level="O2"):
        x = tf.constant(3.0 * eye)
        w = v1.get_variable("w", initializer=eye, use_resource=True)
        y = tf.identity(tf.matmul(x, w))
        with v1.Session() as session:
            session.run(w.initializer)
            # Only a product in 16 bits loses the tail.
            tail = np.float32(1.0 + 2.0**-12)
            np.testing.assert_array_equal(session.run(y, {x: tail * eye}), eye)
            np.testing.assert_array_equal(session.run(y), 3.0 * eye)
