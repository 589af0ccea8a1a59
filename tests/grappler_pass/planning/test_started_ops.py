"""A plan counts the ops that a step starts, before it and under it."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.graph.view import Graph, Item
from grappler_pass.planning.prices import started_ops
from tests.pretended_gpu import H100, Traced, pretended
from tests.text_graph import graph_from_text
from tf_amp.training import optimizer_fusions

LOOP = """
    x = Placeholder
    enter = Enter(x) frame_name=loop
    merge = Merge(enter, next)
    limit = Const(^merge)
    less = Less(merge, limit)
    go = LoopCond(less)
    switch = Switch(merge, go)
    square = Square(switch:1)
    next = NextIteration(square)
    exit = Exit(switch)
"""
FREE = """
    w = VarHandleOp shared_name=w
    read = ReadVariableOp(w) dtype=float
    size = Const dtype=int32
    flat = Reshape(read, size)
    same = Identity(flat)
"""


@pytest.mark.parametrize(
    ("text", "fetch", "count"),
    [
        (FREE, "same", 0),
        (f"{FREE}\nact = Tanh(same)\nsum = AddV2(act, flat)", "sum", 2),
        # What nothing that is run waits for is not started.
        (f"{FREE}\nact = Tanh(same)\nsum = AddV2(act, flat)", "act", 1),
        (f"{FREE}\nact = Tanh(same)\nsum = AddV2(read, flat, ^act)", "sum", 2),
    ],
)
def test_an_op_is_started_where_a_node_has_work_for_its_device(
    text: str, fetch: str, count: int
) -> None:
    assert started_ops(Graph(graph_from_text(text), Item((fetch,)))) == count


def test_an_op_in_a_loop_is_started_in_each_iteration() -> None:
    view = Graph(graph_from_text(LOOP), Item(("exit",)))
    per_loop = view.weight(view.index["square"])
    assert per_loop > 1
    assert started_ops(view) == 2 * per_loop


def transformer(depth: int, width: int = 64) -> keras.Model:
    words = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(100, width)(words)
    for _ in range(depth):
        attended = keras.layers.MultiHeadAttention(2, width // 2)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        y = keras.layers.Dense(4 * width, "gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(width)(y))
    return keras.Model(words, keras.layers.Dense(100)(x))


def test_a_transformer_starts_nine_ops_per_weight_on_a_gpu_one_for_its_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As for variables on a GPU, small ones are updated by a kernel, too.
    monkeypatch.setattr(optimizer_fusions, "_LEAST_ELEMENTS", 0)
    tf_amp.enable(tune="off", device_profile="h100")
    try:
        model = transformer(depth=4)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        model.optimizer.build(model.trainable_variables)
        weights = len(model.trainable_variables)
        spec = tf.TensorSpec((8, 16), tf.int32)
        with pretended(H100):
            traced = Traced.from_function(
                lambda x, y: model.train_step((x, y)), [spec, spec], H100
            )
            before = traced.optimized(with_pass=False)
            after = traced.optimized()
    finally:
        tf_amp.disable()
    counts = [started_ops(Graph(t.graph_def, Item(t.kept))) for t in (before, after)]
    shared = [
        sum(t.count(op) for op in ("Pow", "ResourceApplyAdam")) for t in (before, after)
    ]
    assert shared == [3 * weights, weights + 2]
    assert counts[1] <= 9 * weights
    assert counts[0] - counts[1] >= 5 * (weights - 1)
