"""Loops and the lists in them: colors agree around the loop, lists are of one type."""

from __future__ import annotations

import functools

import tensorflow as tf

from grappler_pass.graph.view import Graph
from tests.grappler_pass.rewriting.patterns import (
    CONTROL_FLOWS,
    gradients_of,
    rewritten,
)
from tests.sketch import Sketch
from tests.soundness import casts, casts_down

either = functools.partial(rewritten, control_flows=CONTROL_FLOWS, capture=True)
# Each two of types, control flows and levels in all ways.
in_pairs = functools.partial(
    rewritten,
    runs=[
        ("bfloat16", "v1", "O1"),
        ("float16", "v2", "O1"),
        ("bfloat16", "v2", "O2"),
        ("float16", "v1", "O2"),
        ("bfloat16", "v1", "O3"),
        ("float16", "v2", "O3"),
    ],
    capture=True,
)


def casts_in_loops(graph_def: tf.compat.v1.GraphDef) -> list[str]:
    view = Graph(graph_def)
    return [n.name for n in view.nodes if n.op == "Cast" and view.frame(n.index)]


@either(low={"MatMul": 2})
def test_a_weight_read_in_a_loop_is_cast_once_outside_it(s: Sketch):
    w = s.weight(8, 8)
    _, y = tf.while_loop(
        lambda i, _: i < 5,
        lambda i, y: [i + 1, tf.nn.relu(tf.matmul(y, w))],
        [tf.constant(0), s.feed(4, 8)],
    )
    after, _ = yield tf.reduce_sum(tf.matmul(y, w))
    assert casts_in_loops(after) == []
    # The weight, the initial value, and the result.
    assert len(casts(after)) == 3


@either(low={"MatMul": 1})
def test_a_loop_invariant_weight_is_cast_outside_though_the_carried_value_stays(
    s: Sketch,
):
    w = s.weight(8, 8)

    def body(i: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        product = tf.matmul(y, w)
        return [i + 1, product / tf.reduce_sum(tf.exp(product), 1, keepdims=True)]

    start = [tf.constant(0), s.feed(4, 8)]
    after, _ = yield tf.while_loop(lambda i, _: i < 3, body, start)[1]
    inside = [c for c in casts_down(after) if c.name in casts_in_loops(after)]
    assert not any("Read" in c.input[0] for c in inside)


@either(low={"MatMul": 1, "Sum": 0})
def test_a_loop_whose_values_differ_in_color(s: Sketch):
    w = s.weight(8, 8)

    def body(i: tf.Tensor, y: tf.Tensor, total: tf.Tensor) -> list[tf.Tensor]:
        y = tf.tanh(tf.matmul(y, w))
        return [i + 1, y, total + tf.reduce_sum(tf.exp(y))]

    start = [tf.constant(0), s.feed(4, 8), tf.constant(0.0)]
    return tf.while_loop(lambda i, *_: i < 4, body, start)[1:]


# The weights' gradient is one product after the loop, which stays float32.
@in_pairs(low={"MatMul": 2})
def test_a_loop_with_gradient(s: Sketch):
    w = s.weight(8, 8)
    _, y = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, y: [i + 1, tf.tanh(tf.matmul(y, w))],
        [tf.constant(0), s.feed(4, 8)],
    )
    return gradients_of(tf.reduce_mean(tf.square(y)))


@in_pairs(least={"MatMul": 1})
def test_scan_with_a_product_in_the_body(s: Sketch):
    w = s.weight(8, 8)
    y = tf.scan(
        lambda state, row: tf.tanh(tf.matmul(state, w) + row),
        s.feed(5, 1, 8),
        initializer=tf.zeros([1, 8]),
    )
    loss = tf.reduce_mean(tf.square(y))
    return loss, *gradients_of(loss)


@in_pairs()
def test_map_with_a_product_in_the_body(s: Sketch):
    w = s.weight(8, 4)
    y = tf.map_fn(lambda row: tf.matmul(row, w), s.feed(5, 2, 8))
    loss = tf.reduce_mean(tf.square(y))
    return loss, *gradients_of(loss)


@in_pairs(low={"Conv2D": 1})
def test_a_training_loop_in_the_graph_with_a_convolution(s: Sketch):
    image, start = s.feed(2, 6, 6, 3), s.weight(3, 3, 3, 3)

    def body(i: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        y = tf.nn.conv2d(image, w, 1, "SAME")
        loss = tf.reduce_mean(tf.square(y - tf.tanh(image)))
        return [i + 1, w - 0.5 * tf.gradients(loss, w)[0]]

    return tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), start])[1]


@rewritten(levels=["O1", "O2", "O3"], capture=True)
def test_an_einsum_with_gradient_in_a_session(s: Sketch):
    y = tf.einsum("bij,jk->bik", s.feed(2, 4, 8), s.weight(8, 3))
    y = tf.einsum("bik,bjk->bij", y, y)
    loss = tf.reduce_mean(tf.square(y))
    return loss, *gradients_of(loss)


@either(low={"MatMul": 2}, given={"False": (False,), "True": (True,)})
def test_a_tensor_array_in_a_loop_is_of_one_type(s: Sketch, reads_back: bool):
    w, x = s.weight(8, 8), s.feed(4, 8)
    array = tf.TensorArray(
        tf.float32, size=3, clear_after_read=False, element_shape=[4, 8]
    )

    def body(i: tf.Tensor, y: tf.Tensor, seen: tf.TensorArray) -> list[object]:
        y = tf.nn.relu(tf.matmul(y, w))
        seen = seen.write(i, y)
        if reads_back:
            y = y + tf.ensure_shape(seen.read(i), [4, 8])
        return [i + 1, y, seen]

    start = [tf.constant(0), x, array]
    _, y, seen = tf.while_loop(lambda i, *_: i < 3, body, start)
    stacked = tf.reshape(seen.stack(), [12, 8])
    after, _ = yield (
        tf.ensure_shape(y, [4, 8]),
        tf.matmul(stacked, s.weight(8, 2, name="v")),
    )
    assert_lists_of_one_type(after)


@rewritten(low={"MatMul": 1, "Sum": 0}, control_flows=["v2"], capture=True)
def test_a_tensor_array_that_a_denied_op_fills_stays_float32(s: Sketch):
    w, rows = s.weight(8, 8), s.feed(5, 4, 8)
    after, _ = yield tf.map_fn(
        lambda row: tf.reduce_sum(tf.matmul(row, w), axis=0), rows
    )
    assert_lists_of_one_type(after)


def assert_lists_of_one_type(graph_def: tf.compat.v1.GraphDef) -> None:
    """Check that ops joined by a list handle in this graph agree on its type."""
    view = Graph(graph_def)
    keys = ("element_dtype", "dtype", "T")
    list_ops = ("TensorList", "TensorArray", "EmptyTensorList")
    groups: dict[int, set[int]] = {}
    root = _handle_roots(view)
    for node in view.nodes:
        if not node.op.startswith(list_ops) or "Length" in node.op:
            continue
        key = next((k for k in keys if k in node.proto.attr), None)
        if key is not None:
            dtype = node.proto.attr[key].type
            groups.setdefault(root[node.index], set()).add(dtype)
    mixed = {view.nodes[i].name: types for i, types in groups.items() if len(types) > 1}
    assert not mixed, f"lists of several types: {mixed}"


def _handle_roots(view: Graph) -> list[int]:
    """Join list ops and control flow by the edges that carry a handle."""
    carriers = ("TensorList", "TensorArray", "EmptyTensorList")
    passing = ("Enter", "Exit", "Merge", "Switch", "NextIteration", "Identity")
    parent = list(range(len(view.nodes)))

    def find(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for node in view.nodes:
        for position, port in enumerate(node.inputs):
            producer = view.nodes[port.node]
            carries = producer.op.startswith(carriers) and port.output == 0
            carries &= "Read" not in producer.op and "Gather" not in producer.op
            carries &= "GetItem" not in producer.op and "Stack" not in producer.op
            if node.op in passing:
                handles = ("variant", "resource", 21, 20)
                carries |= producer.op in passing
                carries &= node.proto.attr["T"].type in handles
            else:
                carries &= node.op.startswith(carriers) and position == 0
                carries |= (
                    producer.op in passing
                    and producer.proto.attr["T"].type in (20, 21)
                    and node.op.startswith(carriers)
                    and position == 0
                )
            if carries:
                parent[find(node.index)] = find(port.node)
    return [find(i) for i in range(len(view.nodes))]


@rewritten(
    low={"MatMul": 2, "TensorListStack": 0, "TensorListSetItem": 0},
    control_flows=["v2"],
)
def test_a_list_passed_to_a_function_keeps_its_type(s: Sketch):
    w, raw = s.weight(8, 8), tf.raw_ops
    handle = raw.TensorListReserve(
        element_shape=[4, 8], num_elements=2, element_dtype=tf.float32
    )
    product = tf.matmul(s.feed(4, 8), w)
    handle = raw.TensorListSetItem(input_handle=handle, index=0, item=product)

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def second(handle: tf.Tensor) -> tf.Tensor:
        ones = tf.ones([4, 8])
        return raw.TensorListSetItem(input_handle=handle, index=1, item=ones)

    stacked = raw.TensorListStack(
        input_handle=second(handle), element_shape=[4, 8], element_dtype=tf.float32
    )
    return tf.matmul(tf.reshape(stacked, [8, 8]), w)
