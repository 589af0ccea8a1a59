"""Damaged graphs, each of which the last stage of the pass refuses by name."""

from __future__ import annotations

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph import Item
from grappler_pass.verify import VerifyError, verify_rewrite
from tests.text_graph import graph_from_text

GIVEN = """
    x = Placeholder
    w = Placeholder @/device:CPU:0
    gate = NoOp
    v = VariableV2 shape=[2,2]
    product = MatMul(x, v, ^gate) _class=loc:@v
    fused = _FusedMatMul(product, w, x, ^gate) num_args=1 fused_ops=[BiasAdd] \
_class=loc:@v
    halves = Cast(product) SrcT=float DstT=bfloat16 _class=loc:@v
    kept = Cast(x) SrcT=float DstT=bfloat16
    fetch = Identity(fused)
"""
# As the pass writes it: a retyped product, a split one, an absorbed cast.
MADE = """
    x = Placeholder
    x/down = Cast(x) SrcT=float DstT=bfloat16
    w = Placeholder @/device:CPU:0
    w/down = Cast(w) SrcT=float DstT=bfloat16
    gate = NoOp
    v = VariableV2 shape=[2,2]
    v/down = Cast(v) SrcT=float DstT=bfloat16
    product = MatMul(x/down, v/down, ^gate) T=bfloat16 _class=loc:@v
    fused/tf_amp_MatMul = MatMul(product, w/down, ^gate) T=bfloat16 _class=loc:@v
    fused = BiasAdd(fused/tf_amp_MatMul, x/down) T=bfloat16 _class=loc:@v
    halves = Identity(product) T=bfloat16 _class=loc:@v
    kept = Cast(x) SrcT=float DstT=bfloat16
    fused/up = Cast(fused) SrcT=bfloat16 DstT=float
    fetch = Identity(fused/up)
"""
ITEM = Item(fetch=("fetch",), feed=("x",), preserve=("kept",))
DAMAGE = [
    ("w = Placeholder", "x = Placeholder", "two nodes are called 'x'"),
    ("MatMul(x/down, ", "MatMul(y, ", "input 'y' of 'product' names no node"),
    ("v/down, ^gate)", "v/down, ^y)", "input '\\^y' of 'product' names no node"),
    (
        "MatMul(x/down, ",
        "MatMul(x, ",
        "input 0 of 'product' .MatMul. wants dtype DT_BFLOAT16, 'x' gives DT_FLOAT",
    ),
    ("halves = ", "other = ", "node 'halves' is gone"),
    ("@/device:CPU:0", "@/device:CPU:1", "node 'w' moved to '/device:CPU:1'"),
    ("@/device:CPU:0", "", "node 'w' moved to ''"),
    ("v/down, ^gate)", "v/down)", "node 'product' lost control inputs .*gate"),
    ("w/down, ^gate)", "w/down)", "node 'fused' lost control inputs .*gate"),
    ("kept = Cast(x) SrcT=float DstT=bfloat16", "kept = Identity(x)", "'kept' was"),
    ("x) SrcT=float DstT=bfloat16\n    f", "x) DstT=half\n    f", "'kept' was"),
]


def after(old: str = "", new: str = "") -> GraphDef:
    assert MADE.count(old) == 1 or not old
    return graph_from_text(MADE.replace(old, new) if old else MADE)


def test_what_the_pass_writes_is_accepted() -> None:
    verify_rewrite(graph_from_text(GIVEN), after(), ITEM)
    verify_rewrite(graph_from_text(GIVEN), graph_from_text(GIVEN), ITEM)


@pytest.mark.parametrize(("old", "new", "message"), DAMAGE)
def test_a_damaged_graph_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_rewrite(graph_from_text(GIVEN), after(old, new), ITEM)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("product", ""),
        ("fused", ""),
        ("halves", ""),
        ("product", "loc:@x"),
        ("kept", "loc:@x"),
    ],
)
def test_a_node_in_another_colocation_group_is_refused(name: str, group: str) -> None:
    made = after()
    (node,) = (node for node in made.node if node.name == name)
    node.attr.pop("_class", None)
    if group:
        node.attr["_class"].s = group.encode()
    with pytest.raises(VerifyError, match=f"'{name}' changed its colocation"):
        verify_rewrite(graph_from_text(GIVEN), made, ITEM)


def test_a_changed_function_library_is_refused() -> None:
    made = after()
    made.library.function.add().signature.name = "new"
    with pytest.raises(VerifyError, match="the function library was changed"):
        verify_rewrite(graph_from_text(GIVEN), made, ITEM)
