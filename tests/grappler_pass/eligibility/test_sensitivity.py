"""Which products sum, and what programs and the table of ops say of roundings."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.eligibility.carried_errors import has_sum
from grappler_pass.graph.op_table import OP_TABLE, RECURRENT_OPS, Errors
from tests.coloring import Colored, color
from tests.coloring_programs import X, colored_function, weights
from tests.small_graphs import CHAIN

BEFORE = f"""{CHAIN}
    bias = Placeholder
    allow2 = MatMul(x, w)
"""


def between(lines: str, last: str, **given: str) -> Colored:
    """Color lines between two products, of which the second reads `last`."""
    graph = f"{BEFORE}\n{lines}\nafter = MatMul({last}, w)\nfetch = Identity(after)"
    return color(graph, fetch="fetch", **given)


@pytest.mark.parametrize(
    ("equation", "shapes", "sums"),
    [
        ("i,j->ij", [(4,), (5,)], False),
        ("ij,jk->ik", [(4, 5), (5, 6)], True),
        ("ij,jk->ik", [(4, 1), (1, 6)], False),
        ("bi,bj->bij", [(4, 5), (4, 6)], False),
        ("...i,ij->...j", [(4, 5), (5, 6)], True),
        ("ij,jk->ik", [None, None], True),
        ("ij,jk->ik", [(), (1, 6)], True),
    ],
)
def test_an_einsum_without_a_sum_is_no_product(
    equation: str, shapes: list[tuple[int, ...] | None], sums: bool
) -> None:
    node = tf.compat.v1.NodeDef(op="Einsum")
    node.attr["equation"].s = equation.encode()
    assert has_sum(node, shapes) is sums


@pytest.mark.parametrize(
    ("op", "kernel", "sums"),
    [
        ("Conv2D", (1, 1, 1, 8), False),
        ("Conv2D", (1, 1, 8, 1), True),
        ("Conv2DBackpropInput", (1, 1, 8, 1), False),
        ("Conv2DBackpropInput", (1, 1, 1, 8), True),
        ("Conv2DBackpropInput", (1, 3, 8, 1), True),
        ("Conv2DBackpropFilter", (1, 1, 1, 1), True),
        ("DepthwiseConv2dNative", (1, 1, 8, 2), False),
        ("DepthwiseConv2dNative", (1, 3, 8, 2), True),
    ],
)
def test_a_convolution_that_only_scales_is_no_product(
    op: str, kernel: tuple[int, ...], sums: bool
) -> None:
    assert has_sum(tf.compat.v1.NodeDef(op=op), [(4, 8, 8, 8), kernel]) is sums


@pytest.mark.parametrize(
    ("op", "transposes", "left", "sums"),
    [
        ("MatMul", "transpose_a", (1, 8), False),
        ("MatMul", "", (8, 1), False),
        ("MatMul", "", (1, 8), True),
        ("BatchMatMulV2", "", (2, 8, 1), False),
        ("BatchMatMulV2", "adj_x", (2, 1, 8), False),
        ("BatchMatMulV2", "", (2, 1, 8), True),
        ("BatchMatMulV2", "", None, True),
    ],
)
def test_a_product_of_columns_by_rows_is_no_product(
    op: str, transposes: str, left: tuple[int, ...] | None, sums: bool
) -> None:
    node = tf.compat.v1.NodeDef(op=op)
    if transposes:
        node.attr[transposes].b = True
    assert has_sum(node, [left, None]) is sums


def test_an_outer_product_of_inputs_stays_float32() -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.einsum("i,j->ij", x[0], x[1]) @ w)

    colored = colored_function(run, X)
    assert colored.low_ops("Einsum") == (0, 1)
    assert colored.low_ops("MatMul") == (1, 1)


def test_a_sum_that_a_loop_carries_is_float32() -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        total = x @ w
        for _ in tf.range(5):
            total = total + tf.nn.relu(x @ w)
        return tf.nn.relu(total @ w)

    colored = colored_function(run, X)
    assert colored.low_ops("AddV2")[0] == 0
    low, of = colored.low_ops("MatMul")
    assert low == of


def test_a_long_list_is_graded_in_one_go() -> None:
    count = 1500
    lines = ["array = TensorArrayV3(axis) dtype=float32", "flow0 = Identity(array:1)"]
    for i in range(count):
        lines += [
            f"flow{i + 1} = TensorArrayWriteV3(array, axis, allow1, flow{i})",
            f"read{i} = TensorArrayReadV3(array, axis, flow{count}) dtype=float32",
        ]
    begin = time.process_time()
    colored = between("\n".join(lines), "read0")
    assert colored.colors("read0") == "L"
    # Every member with every other would take a minute.
    assert time.process_time() - begin < 20


def test_every_op_says_what_it_makes_of_errors() -> None:
    unsaid = {row.op for row in OP_TABLE if row.why.errors is None}
    assert unsaid == {"SaveV2", "_UnaryOpsComposition"}
    products = {row.op for row in OP_TABLE if row.why.errors is Errors.PRODUCT}
    allowed = {row.op for row in OP_TABLE if row.bfloat16 == "allow"}
    assert products - allowed == {op for op in RECURRENT_OPS if "Block" in op}
    assert allowed <= products


def test_a_dense_network_goes_low_between_its_products_alone() -> None:
    first, last = weights(8, 8), weights(8, 4)
    bias = tf.Variable(np.ones(8, np.float32))

    def run(x: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.sigmoid(tf.nn.bias_add(x @ first, bias))
        return tf.nn.softmax(tf.nn.bias_add(hidden @ last, bias[:4]))

    colored = colored_function(run, X)
    assert colored.low_ops("MatMul") == (2, 2)
    assert colored.low_ops("BiasAdd") == (1, 2)
    assert colored.low_ops("Sigmoid") == (1, 1)
    assert colored.low_ops("Softmax") == (0, 1)
