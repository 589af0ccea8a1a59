"""Straight-line patterns: which slots are in 16 bits, how many casts, what stays."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from tests.equivalence import assert_equivalent
from tests.rewriters import rewritten_by, settings_of
from tests.sketch import sketch
from tests.soundness import (
    LOW_DTYPES,
    casts,
    casts_added,
    casts_down,
    casts_up,
    colors,
    ops_with_dtype,
)

both_dtypes = pytest.mark.parametrize("low_dtype", sorted(LOW_DTYPES))
every_level = pytest.mark.parametrize("level", ["O1", "O2", "O3"])


@pytest.mark.parametrize("level", ["O1", "O2"])
@both_dtypes
def test_a_graph_without_an_allow_op_is_returned_itself(
    low_dtype: str, level: str
) -> None:
    with sketch() as s:
        y = tf.nn.softmax(tf.tanh(s.feed(4, 8)) + 1.0)
        program = s.program(tf.reduce_sum(y))
    settings = settings_of(low_dtype, level)
    rewrite = rewritten_by(program.graph_def, program.item, settings)
    assert rewrite.graph_def is program.graph_def
    assert not rewrite.changed


@both_dtypes
def test_the_users_own_16_bit_part_is_untouched(low_dtype: str) -> None:
    with sketch() as s:
        x = s.feed(4, 8)
        own = tf.cast(x, tf.float16, name="own_cast")
        own = tf.matmul(own, tf.constant(s.values(8, 8), tf.float16), name="own")
        y = tf.matmul(x, s.weight(8, 8), name="allow1")
        program = s.program(tf.cast(own, tf.float32, name="back"), tf.identity(y))
    after = assert_equivalent(program, low_dtype).graph_def
    nodes = {node.name: node for node in after.node}
    assert nodes["own"].attr["T"].type == types_pb2.DT_HALF
    assert nodes["own"].input[0] == "own_cast"
    assert colors(after, "allow1") == "L"


def test_a_chain_of_the_four_lists_in_bfloat16_has_the_exact_set() -> None:
    with sketch() as s:
        deny = tf.reduce_sum(s.feed(4, 8, 3), axis=2, name="deny1")
        clear = tf.reshape(deny, [8, 4], name="clear1")
        infer = tf.tanh(clear, name="infer1")
        allow = tf.matmul(infer, s.weight(4, 4), name="allow1")
        program = s.program(tf.identity(allow, name="fetch"))
    after = assert_equivalent(program, "bfloat16").graph_def
    # The denied op taints the infer op behind it; casts: input, weight, result.
    assert colors(after, "deny1 clear1 infer1 allow1 fetch") == "F F F L F"
    assert (len(casts_down(after)), len(casts_up(after))) == (2, 1)


@both_dtypes
def test_low_precision_floods_clear_ops_both_ways(low_dtype: str) -> None:
    with sketch() as s:
        clear1 = tf.reshape(s.feed(4, 2, 4), [4, 8], name="clear1")
        clear2 = tf.reverse(clear1, [0], name="clear2")
        allow = tf.matmul(clear2, s.weight(8, 8), name="allow1")
        clear3 = tf.nn.relu(allow, name="clear3")
        clear4 = tf.transpose(clear3, name="clear4")
        program = s.program(tf.identity(clear4, name="fetch"))
    after = assert_equivalent(program, low_dtype).graph_def
    found = colors(after, "clear1 allow1 clear3 clear4 fetch")
    assert found == "L L L L F"
    assert colors(after, "clear2") == "L"
    assert (len(casts_down(after)), len(casts_up(after))) == (2, 1)


@every_level
@both_dtypes
def test_fetches_and_feeds_keep_their_dtypes(low_dtype: str, level: str) -> None:
    with sketch() as s:
        x = s.feed(4, 8)
        y = tf.matmul(x, s.weight(8, 8), name="allow1")
        program = s.program(y, tf.nn.relu(y, name="fetched_clear"))
    rewrite = assert_equivalent(program, low_dtype, level)
    assert colors(rewrite.graph_def, "allow1 fetched_clear") == "F F"


@both_dtypes
def test_a_weight_read_by_three_products_is_cast_once(low_dtype: str) -> None:
    with sketch() as s:
        x, w = s.feed(4, 8), s.weight(8, 8)
        products = [tf.matmul(x, w), tf.matmul(x * 2.0, w), tf.matmul(x + 1.0, w)]
        program = s.program(tf.identity(tf.add_n(products)))
    after = assert_equivalent(program, low_dtype).graph_def
    of_weight = [c for c in casts_down(after) if "Read" in c.input[0]]
    assert len(of_weight) == 1
    assert ops_with_dtype(after, low_dtype)["MatMul"] == 3


@both_dtypes
def test_three_reads_of_one_variable_share_a_cast(low_dtype: str) -> None:
    with sketch() as s:
        x, w = s.feed(4, 8), s.variable(8, 8)
        products = [tf.matmul(x, w.read_value()) for _ in range(3)]
        program = s.program(tf.identity(tf.add_n(products)))
    after = assert_equivalent(program, low_dtype).graph_def
    assert len(casts_down(after)) == 2
    assert ops_with_dtype(after, low_dtype)["MatMul"] == 3


@both_dtypes
def test_reads_on_both_sides_of_a_write_do_not_share_a_cast(low_dtype: str) -> None:
    with sketch() as s:
        x, w = s.feed(4, 8), s.variable(8, 8)
        first = tf.matmul(x, w.read_value())
        with tf.control_dependencies([first]):
            write = w.assign(-0.5 * tf.ones([8, 8]), read_value=False)
        with tf.control_dependencies([write]):
            second = tf.matmul(x, w.read_value())
        program = s.program(tf.identity(first), tf.identity(second))
    after = assert_equivalent(program, low_dtype).graph_def
    assert len(casts_down(after)) == 3


@pytest.mark.parametrize("training", [True, False])
@both_dtypes
def test_fused_batch_normalization_is_low_in_T_and_float32_in_U(
    low_dtype: str, training: bool
) -> None:
    with sketch() as s:
        y = tf.nn.conv2d(s.feed(2, 6, 6, 3), s.weight(3, 3, 3, 8), 1, "SAME")
        scale, offset = s.weight(8, name="scale"), s.weight(8, name="offset")
        statistics = () if training else (tf.zeros([8]), tf.ones([8]))
        y = tf.compat.v1.nn.fused_batch_norm(
            y, scale, offset, *statistics, is_training=training
        )[0]
        y = tf.nn.conv2d(tf.nn.relu(y), s.weight(3, 3, 8, 4, name="w2"), 1, "SAME")
        loss = tf.reduce_sum(tf.tanh(y))
        gradients = tf.gradients(loss, tf.compat.v1.global_variables())
        program = s.program(loss, *map(tf.identity, gradients))
    after = assert_equivalent(program, low_dtype).graph_def
    forward = [n.name for n in after.node if n.op == "FusedBatchNormV3"]
    backward = [n.name for n in after.node if n.op == "FusedBatchNormGradV3"]
    assert len(forward) == len(backward) == 1
    for name in (*forward, *backward):
        assert colors(after, name, "T") == "L"
        assert colors(after, name, "U") == "F"


@both_dtypes
def test_ops_of_several_tensors_go_low_with_all_their_types(low_dtype: str) -> None:
    with sketch() as s:
        x = s.feed(4, 8)
        a, b = (tf.matmul(x, s.weight(8, 8, name=n)) for n in ("v", "w"))
        a, b = tf.identity_n([a, b], name="identities")
        y = tf.concat([tf.add_n([a, b], name="sum"), a], axis=1, name="concat")
        y = tf.matmul(y, s.weight(16, 4, name="u"))
        program = s.program(tf.identity(y))
    after = assert_equivalent(program, low_dtype).graph_def
    nodes = {node.name: node for node in after.node}
    low = LOW_DTYPES[low_dtype]
    assert list(nodes["identities"].attr["T"].list.type) == [low, low]
    assert colors(after, "sum concat") == "L L"


@both_dtypes
def test_an_identity_of_many_types_goes_low_in_some_of_them(low_dtype: str) -> None:
    with sketch() as s:
        x = s.feed(4, 8)
        product = tf.matmul(x, s.weight(8, 8))
        kept, count = tf.reduce_sum(x, axis=1), tf.constant([1, 2])
        product, kept, count = tf.identity_n([product, kept, count], name="identities")
        y = tf.matmul(product, s.weight(8, 8, name="v"))
        program = s.program(tf.identity(y), tf.exp(kept), tf.identity(count))
    after = assert_equivalent(program, low_dtype).graph_def
    types = next(n for n in after.node if n.name == "identities").attr["T"].list.type
    assert types[0] == LOW_DTYPES[low_dtype]
    assert types[2] == types_pb2.DT_INT32


@both_dtypes
def test_an_existing_cast_is_absorbed(low_dtype: str) -> None:
    with sketch() as s:
        x = s.feed_value(s.values(4, 8).astype(tf.as_dtype(low_dtype).name), "x")
        y = tf.matmul(tf.cast(x, tf.float32, name="given"), s.weight(8, 8))
        program = s.program(tf.identity(y))
    after = assert_equivalent(program, low_dtype).graph_def
    assert ops_with_dtype(after, low_dtype)["MatMul"] == 1
    assert_no_pair_of_casts(after)
    product = next(node for node in after.node if node.op == "MatMul")
    assert product.input[0] == "x"


@both_dtypes
def test_no_cast_reads_a_cast(low_dtype: str) -> None:
    with sketch() as s:
        y = tf.matmul(s.feed(4, 8), s.weight(8, 8))
        for name in ("v", "u"):
            y = tf.reduce_sum(tf.expand_dims(y, 0), axis=0)
            y = tf.matmul(tf.exp(-tf.square(y)), s.weight(8, 8, name=name))
        program = s.program(tf.identity(tf.cast(y, tf.float64)))
    after = assert_equivalent(program, low_dtype).graph_def
    assert ops_with_dtype(after, low_dtype)["MatMul"] == 3
    assert_no_pair_of_casts(after)


@both_dtypes
def test_a_fetched_cast_stays_what_it_is(low_dtype: str) -> None:
    with sketch() as s:
        y = tf.matmul(s.feed(4, 8), s.weight(8, 8))
        program = s.program(tf.cast(y, tf.float64, name="fetched"))
    after = assert_equivalent(program, low_dtype).graph_def
    assert ops_with_dtype(after, low_dtype)["MatMul"] == 1
    assert colors(after, "fetched", "SrcT") == "F"


def assert_no_pair_of_casts(graph_def: tf.compat.v1.GraphDef) -> None:
    names = {node.name for node in casts(graph_def)}
    pairs = [c.name for c in casts(graph_def) if c.input[0] in names]
    assert not pairs, f"these casts read casts: {pairs}"


def test_a_constant_is_cast_at_optimization_time() -> None:
    with sketch() as s:
        y = tf.matmul(s.feed(4, 8), tf.constant(s.values(8, 8), name="table"))
        program = s.program(tf.identity(y))
    after = assert_equivalent(program, "bfloat16").graph_def
    assert len(casts_down(after)) == 1
    assert ops_with_dtype(after, "bfloat16")["Const"] == 1


def test_the_number_of_casts_does_not_grow_with_the_depth_of_a_low_chain() -> None:
    with sketch() as s:
        y = s.feed(4, 8)
        for i in range(6):
            y = tf.nn.relu(tf.matmul(y, s.weight(8, 8, name=f"w{i}")))
        program = s.program(tf.identity(y))
    after = assert_equivalent(program, "bfloat16").graph_def
    # One for the input, one for each weight, one for the result.
    assert casts_added(program.graph_def, after) == 8
