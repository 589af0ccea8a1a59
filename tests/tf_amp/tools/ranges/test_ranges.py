"""Ranges tell what 16 bits cannot hold, over all batches and inside of loops."""

import dataclasses
import json
import math

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_amp
from grappler_pass import pipeline
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.plan import Cause
from tests import planted
from tests.grappler_pass.rewriting.test_rewriting import settings as rewriting_settings
from tests.text_graph import graph_from_text
from tf_amp.config.ranges import Ranges, TensorRange
from tf_amp.tools.ranges import range_of_values, ranges_of

_LOW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _batches(*scales):
    return [planted.rows(4).numpy() * np.float32(scale) for scale in scales]


def _product(x):
    hidden = tf.matmul(x, tf.ones((planted.WIDTH, 8)), name="product")
    return tf.nn.relu(hidden, name="positive") * tf.constant(0.5)


def _by_name(seen):
    return {each.name: each for each in seen.tensors}


def test_an_activation_that_overflows_only_in_the_third_batch_is_found():
    seen = tf_amp.ranges(_product, _batches(1, 1, 1e5, 1))
    assert seen.batches == 4
    product = _by_name(seen)["product"]
    assert product.batches == 4
    assert product.largest_in == 3
    assert product.largest > 65504.0
    assert 0.0 < product.overflow_share("float16") <= 0.25
    assert product.overflow_share("bfloat16") == 0.0
    unsafe = seen.unsafe("float16")
    assert "product reaches" in unsafe["positive"]
    assert "in batch 3, beyond 512" in unsafe["positive"]
    assert not seen.unsafe("bfloat16")
    assert "positive" not in tf_amp.ranges(_product, _batches(1, 1)).unsafe("float16")


def test_the_safe_range_is_settable():
    batches = _batches(1)
    assert not tf_amp.ranges(_product, batches).unsafe("float16")
    assert "product" in tf_amp.ranges(_product, batches, limit=2.0).unsafe("bfloat16")
    deep = tf_amp.ranges(_product, batches, depth=31)
    assert _by_name(deep)["product"].depth == planted.WIDTH
    assert deep.unsafe("float16")["product"] == "product sums up 32, more than 31"
    lost = tf_amp.ranges(_product, _batches(1e-9), underflow=0.1)
    assert "become zero in float16" in lost.unsafe("float16")["product"]
    assert not lost.unsafe("bfloat16")


def test_tensors_in_loops_are_seen_in_each_round():
    @tf.function
    def grow(x):
        for _ in tf.range(4):
            x = tf.matmul(x, 100.0 * tf.eye(planted.WIDTH), name="step")
        return x

    seen = tf_amp.ranges(grow, [np.ones((1, planted.WIDTH), np.float32)] * 2)
    steps = [each for each in seen.tensors if each.op == "MatMul"]
    assert [each.largest for each in steps] == [1e8]
    assert steps[0].values == 2 * 4 * planted.WIDTH
    assert steps[0].batches == seen.batches == 2
    assert steps[0].overflow_share("float16") == 0.5


def test_gradients_may_leave_what_activations_have_to_keep_to():
    weight = tf.Variable(tf.ones((planted.WIDTH, 4)))

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(1000.0 * (x @ weight))
        return tape.gradient(loss, weight) + 0.0

    seen = tf_amp.ranges(slope, [np.ones((4, planted.WIDTH), np.float32)])
    gradients = [s for s in seen.tensors if s.is_gradient and s.op == "MatMul"]
    assert [g.largest for g in gradients] == [4000.0]
    assert gradients[0].node not in seen.unsafe("float16")


def test_a_sum_of_gradients_is_one():
    weight = tf.Variable(tf.ones((planted.WIDTH, 4)))

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = tf.nn.tanh(x)
            loss = tf.reduce_sum(h @ weight) + tf.reduce_sum(tf.nn.tanh(h @ weight))
        return tape.gradient(loss, x)

    seen = tf_amp.ranges(slope, [np.ones((4, planted.WIDTH), np.float32)])
    assert [s.is_gradient for s in seen.tensors if s.op == "AddN"] == [True]


def test_a_graph_is_measured_by_the_names_of_its_placeholders():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
        tf.identity(tf.matmul(x, tf.ones((4, 2)), name="product"), name="out")
    batches = [{"x": np.full((2, 4), value, np.float32)} for value in (1.0, 3.0)]
    seen = ranges_of(graph.as_graph_def(), batches, fetches=["out"])
    assert _by_name(seen)["product"].largest == 12.0
    with pytest.raises(tf_amp.AmpError, match=r"Expected are: x: float32 \[\?, 4\]"):
        ranges_of(graph.as_graph_def(), [{"y": batches[0]["x"]}], fetches=["out"])


def _planned(low_dtype, ranges):
    graph_def, item = _relu_chain()
    chosen = dataclasses.replace(rewriting_settings(low_dtype), ranges=ranges)
    return pipeline.draft_graph(
        graph_def, item, chosen, shapes=lambda: shapes_from_graph_def(graph_def)
    ).plan


def _relu_chain():
    graph_def = graph_from_text(
        """
        x = Placeholder
        PartitionedCall/product = MatMul(x, x)
        clear = Relu(PartitionedCall/product)
        second = MatMul(clear, clear)
        fetch = Identity(second)
        """
    )
    return graph_def, Item(fetch=("fetch",), feed=("x",))


def test_what_leaves_the_safe_range_stays_float32_with_that_reason():
    free = _planned("float16", ())
    assert {d.slot.node for d in free.decisions if d.is_low} == {
        "PartitionedCall/product",
        "clear",
        "second",
    }
    plan = _planned("float16", (("product", "it reaches 1e5"),))
    assert {d.slot.node for d in plan.decisions if d.is_low} == {"clear", "second"}
    kept = plan.filter(reason="measured_range").decisions
    assert [d.slot.node for d in kept] == ["PartitionedCall/product"]
    assert kept[0].reason.cause is Cause.MEASURED_RANGE
    assert "leave the safe range" in str(kept[0].reason)
    assert "it reaches 1e5" in str(kept[0].reason)


@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
@settings(max_examples=200)
def test_shares_are_what_a_cast_would_make_of_the_values(values):
    value = np.array(values, np.float32)
    part = range_of_values(TensorRange("x", 0, "MatMul"), value)
    finite = value[np.isfinite(value)]
    assert part.not_finite == value.size - finite.size
    assert part.largest == np.abs(finite).max(initial=0.0)
    nonzero = finite[finite != 0.0]
    assert part.nonzero == nonzero.size
    assert part.smallest == np.abs(nonzero).min(initial=math.inf)
    for name, dtype in _LOW.items():
        with np.errstate(over="ignore"):
            low = finite.astype(dtype).astype(np.float32)
        assert part.overflow[name] == np.count_nonzero(np.isinf(low))
        assert part.underflow[name] == np.count_nonzero((low == 0) & (finite != 0))


def test_ranges_make_a_round_trip_through_a_file(tmp_path):
    seen = tf_amp.ranges(_product, [*_batches(3), np.zeros((2, planted.WIDTH), "f4")])
    seen = dataclasses.replace(seen, limit=7.0, underflow=0.25, depth=9)
    file = tmp_path / "ranges.json"
    seen.save(file)
    assert Ranges.load(file) == seen
    assert "product" in str(seen)


@pytest.mark.parametrize("text", ["", "[1]", json.dumps({"format": "something"})])
def test_a_file_that_holds_no_ranges_is_refused(tmp_path, text):
    file = tmp_path / "ranges.json"
    file.write_text(text)
    with pytest.raises(tf_amp.ConfigError, match="holds no ranges"):
        Ranges.load(file)
    with pytest.raises(tf_amp.ConfigError, match="cannot be read"):
        Ranges.load(tmp_path / "other.json")


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(tf_amp.ConfigError, match="above 0"):
        tf_amp.ranges(_product, _batches(1), limit=-1.0).unsafe("float16")


def test_one_of_a_kind_is_not_told_in_the_plural():
    seen = Ranges((TensorRange("x", 0, "MatMul"),), batches=1)
    assert seen.summary() == "1 tensor in 1 batch"
    assert Ranges((), batches=2).summary() == "0 tensors in 2 batches"
