"""Straight-line patterns: which slots are in 16 bits, how many casts, what stays."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import types_pb2

from tests.grappler_pass.rewriting.patterns import rewritten
from tests.sketch import Sketch
from tests.soundness import LOW_DTYPES, casts


@rewritten(colored={"allow1": "L"})
def test_the_users_own_16_bit_part_is_untouched(s: Sketch):
    x = s.feed(4, 8)
    own = tf.cast(x, tf.float16, name="own_cast")
    own = tf.matmul(own, tf.constant(s.values(8, 8), tf.float16), name="own")
    y = tf.matmul(x, s.weight(8, 8), name="allow1")
    after, _ = yield s.program(tf.cast(own, tf.float32, name="back"), tf.identity(y))
    nodes = {node.name: node for node in after.node}
    assert nodes["own"].attr["T"].type == types_pb2.DT_HALF
    assert nodes["own"].input[0] == "own_cast"


# The denied op taints the infer op behind it; casts: input, weight, result.
@rewritten(
    colored={"deny1 clear1 infer1 allow1 fetch": "F F F L F"},
    down=2,
    up=1,
    dtypes=["bfloat16"],
)
def test_a_chain_of_the_four_lists_in_bfloat16_has_the_exact_set(s: Sketch):
    deny = tf.reduce_sum(s.feed(4, 8, 3), axis=2, name="deny1")
    clear = tf.reshape(deny, [8, 4], name="clear1")
    infer = tf.tanh(clear, name="infer1")
    allow = tf.matmul(infer, s.weight(4, 4), name="allow1")
    return s.program(tf.identity(allow, name="fetch"))


@rewritten(
    colored={"clear1 clear2 allow1 clear3 clear4 fetch": "L L L L L F"}, down=2, up=1
)
def test_low_precision_floods_clear_ops_both_ways(s: Sketch):
    clear1 = tf.reshape(s.feed(4, 2, 4), [4, 8], name="clear1")
    clear2 = tf.reverse(clear1, [0], name="clear2")
    allow = tf.matmul(clear2, s.weight(8, 8), name="allow1")
    clear3 = tf.nn.relu(allow, name="clear3")
    clear4 = tf.transpose(clear3, name="clear4")
    return s.program(tf.identity(clear4, name="fetch"))


@rewritten(colored={"allow1 fetched_clear": "F F"}, levels=["O1", "O2", "O3"])
def test_fetches_and_feeds_keep_their_dtypes(s: Sketch):
    y = tf.matmul(s.feed(4, 8), s.weight(8, 8), name="allow1")
    return s.program(y, tf.nn.relu(y, name="fetched_clear"))


@rewritten(low={"MatMul": 3}, down=4)
def test_a_weight_read_by_three_products_is_cast_once(s: Sketch):
    x, w = s.feed(4, 8), s.weight(8, 8)
    return tf.add_n([tf.matmul(x, w), tf.matmul(x * 2.0, w), tf.matmul(x + 1.0, w)])


@rewritten(low={"MatMul": 3}, down=2)
def test_three_reads_of_one_variable_share_a_cast(s: Sketch):
    x, w = s.feed(4, 8), s.variable(8, 8)
    return tf.add_n([tf.matmul(x, w.read_value()) for _ in range(3)])


@rewritten(down=3)
def test_reads_on_both_sides_of_a_write_do_not_share_a_cast(s: Sketch):
    x, w = s.feed(4, 8), s.variable(8, 8)
    first = tf.matmul(x, w.read_value())
    with tf.control_dependencies([first]):
        write = w.assign(-0.5 * tf.ones([8, 8]), read_value=False)
    with tf.control_dependencies([write]):
        second = tf.matmul(x, w.read_value())
    return first, second


@rewritten(given={"True": (True,), "False": (False,)})
def test_fused_batch_normalization_is_low_in_T_and_float32_in_U(s: Sketch, training):
    y = tf.nn.conv2d(s.feed(2, 6, 6, 3), s.weight(3, 3, 3, 8), 1, "SAME")
    scale, offset = s.weight(8, name="scale"), s.weight(8, name="offset")
    statistics = () if training else (tf.zeros([8]), tf.ones([8]))
    y = tf.compat.v1.nn.fused_batch_norm(
        y, scale, offset, *statistics, is_training=training
    )[0]
    y = tf.nn.conv2d(tf.nn.relu(y), s.weight(3, 3, 8, 4, name="w2"), 1, "SAME")
    loss = tf.reduce_sum(tf.tanh(y))
    gradients = tf.gradients(loss, tf.compat.v1.global_variables())
    after, low_dtype = yield loss, *gradients
    ops = ("FusedBatchNormV3", "FusedBatchNormGradV3")
    norms = {node.op: node.attr for node in after.node if node.op in ops}
    types = [(norms[op]["T"].type, norms[op]["U"].type) for op in ops]
    assert types == [(LOW_DTYPES[low_dtype], types_pb2.DT_FLOAT)] * 2


@rewritten(colored={"sum concat": "L L"})
def test_ops_of_several_tensors_go_low_with_all_their_types(s: Sketch):
    x = s.feed(4, 8)
    a, b = (tf.matmul(x, s.weight(8, 8, name=n)) for n in ("v", "w"))
    a, b = tf.identity_n([a, b], name="identities")
    y = tf.concat([tf.add_n([a, b], name="sum"), a], axis=1, name="concat")
    after, low_dtype = yield tf.matmul(y, s.weight(16, 4, name="u"))
    assert _types_of_identities(after) == [LOW_DTYPES[low_dtype]] * 2


@rewritten()
def test_an_identity_of_many_types_goes_low_in_some_of_them(s: Sketch):
    x = s.feed(4, 8)
    product = tf.matmul(x, s.weight(8, 8))
    kept, count = tf.reduce_sum(x, axis=1), tf.constant([1, 2])
    product, kept, count = tf.identity_n([product, kept, count], name="identities")
    y = tf.matmul(product, s.weight(8, 8, name="v"))
    after, low_dtype = yield y, tf.exp(kept), count
    types = _types_of_identities(after)
    assert (types[0], types[2]) == (LOW_DTYPES[low_dtype], types_pb2.DT_INT32)


def _types_of_identities(after: tf.compat.v1.GraphDef) -> list[int]:
    (node,) = (node for node in after.node if node.name == "identities")
    return list(node.attr["T"].list.type)


@rewritten(low={"MatMul": 3})
def test_no_cast_reads_a_cast(s: Sketch):
    y = tf.matmul(s.feed(4, 8), s.weight(8, 8))
    for name in ("v", "u"):
        y = tf.reduce_sum(tf.expand_dims(y, 0), axis=0)
        y = tf.matmul(tf.exp(-tf.square(y)), s.weight(8, 8, name=name))
    after, _ = yield tf.cast(y, tf.float64)
    names = {node.name for node in casts(after)}
    pairs = [c.name for c in casts(after) if c.input[0] in names]
    assert not pairs, f"these casts read casts: {pairs}"


# One for the input, one for each weight, one for the result.
@rewritten(down=7, up=1, dtypes=["bfloat16"])
def test_the_number_of_casts_does_not_grow_with_the_depth_of_a_low_chain(s: Sketch):
    y = s.feed(4, 8)
    for i in range(6):
        y = tf.nn.relu(tf.matmul(y, s.weight(8, 8, name=f"w{i}")))
    return y
