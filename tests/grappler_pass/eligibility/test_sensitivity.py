"""Which products sum, and what the table of ops says of roundings."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from grappler_pass.eligibility.carried_errors import has_sum
from grappler_pass.graph.op_table import OP_TABLE, RECURRENT_OPS, Errors
from tests.coloring import color
from tests.small_graphs import CHAIN

IMAGES = (4, 8, 8, 8)


@pytest.mark.parametrize(
    ("op", "words", "shapes", "sums"),
    [
        ("Einsum", "i,j->ij", [(4,), (5,)], False),
        ("Einsum", "ij,jk->ik", [(4, 5), (5, 6)], True),
        ("Einsum", "ij,jk->ik", [(4, 1), (1, 6)], False),
        ("Einsum", "bi,bj->bij", [(4, 5), (4, 6)], False),
        ("Einsum", "...i,ij->...j", [(4, 5), (5, 6)], True),
        ("Einsum", "ij,jk->ik", [None, None], True),
        ("Einsum", "ij,jk->ik", [(), (1, 6)], True),
        ("Conv2D", "", [IMAGES, (1, 1, 1, 8)], False),
        ("Conv2D", "", [IMAGES, (1, 1, 8, 1)], True),
        ("Conv2DBackpropInput", "", [IMAGES, (1, 1, 8, 1)], False),
        ("Conv2DBackpropInput", "", [IMAGES, (1, 1, 1, 8)], True),
        ("Conv2DBackpropInput", "", [IMAGES, (1, 3, 8, 1)], True),
        ("Conv2DBackpropFilter", "", [IMAGES, (1, 1, 1, 1)], True),
        ("DepthwiseConv2dNative", "", [IMAGES, (1, 1, 8, 2)], False),
        ("DepthwiseConv2dNative", "", [IMAGES, (1, 3, 8, 2)], True),
        ("MatMul", "transpose_a", [(1, 8), None], False),
        ("MatMul", "", [(8, 1), None], False),
        ("MatMul", "", [(1, 8), None], True),
        ("BatchMatMulV2", "", [(2, 8, 1), None], False),
        ("BatchMatMulV2", "adj_x", [(2, 1, 8), None], False),
        ("BatchMatMulV2", "", [(2, 1, 8), None], True),
        ("BatchMatMulV2", "", [None, None], True),
    ],
)
def test_what_adds_up_no_terms_is_no_product(
    op: str, words: str, shapes: list[tuple[int, ...] | None], sums: bool
) -> None:
    node = tf.compat.v1.NodeDef(op=op)
    if op == "Einsum":
        node.attr["equation"].s = words.encode()
    elif words:
        node.attr[words].b = True
    assert has_sum(node, shapes) is sums


def test_a_long_list_is_followed_in_one_go() -> None:
    count = 1500
    lines = [CHAIN, "allow2 = MatMul(x, w)"]
    lines += ["array = TensorArrayV3(axis) dtype=float32", "flow0 = Identity(array:1)"]
    for i in range(count):
        lines += [
            f"flow{i + 1} = TensorArrayWriteV3(array, axis, allow1, flow{i})",
            f"read{i} = TensorArrayReadV3(array, axis, flow{count}) dtype=float32",
        ]
    lines += ["after = MatMul(read0, w)", "fetch = Identity(after)"]
    begin = time.process_time()
    assert color("\n".join(lines), fetch="fetch").colors("read0") == "L"
    # Every member with every other would take a minute.
    assert time.process_time() - begin < 20


def test_every_op_says_what_it_makes_of_errors() -> None:
    unsaid = {row.op for row in OP_TABLE if row.why.errors is None}
    assert unsaid == {"SaveV2", "_UnaryOpsComposition"}
    products = {row.op for row in OP_TABLE if row.why.errors is Errors.PRODUCT}
    allowed = {row.op for row in OP_TABLE if row.bfloat16 == "allow"}
    assert products - allowed == {op for op in RECURRENT_OPS if "Block" in op}
    assert allowed <= products
