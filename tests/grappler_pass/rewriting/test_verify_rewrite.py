"""Damaged graphs, each of which the last stage of the pass refuses by name."""

from __future__ import annotations

import time

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.view import Item
from grappler_pass.rewriting.verify import VerifyError, lost_effects, verify_rewrite
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
READ = "v/down, ^gate) T=bfloat16"
GROUP = "changed its colocation group"
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
    (f"{READ} _class=loc:@v", READ, GROUP),
    (f"{READ} _class=loc:@v", f"{READ} _class=loc:@x", GROUP),
    ("MatMul, x/down) T=bfloat16 _class=loc:@v", "MatMul, x/down) T=bfloat16", GROUP),
    ("(product) T=bfloat16 _class=loc:@v", "(product) T=bfloat16", GROUP),
    ("kept = Cast(x)", "kept = Cast(x) _class=loc:@x", GROUP),
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


SWAPPED = """
    x = Placeholder
    axis = Const dtype=int32
    nearest = ArgMin(x, axis) output_type=int64
    neg = Identity(nearest) T=float
    fetch = Cast(neg) SrcT=int64 DstT=int32
"""


def test_a_type_that_was_wrong_before_is_accepted_and_a_new_one_refused() -> None:
    """TensorFlow's optimizer swaps Neg and ArgMax, and keeps Neg's type."""
    given = graph_from_text(SWAPPED)
    verify_rewrite(given, given, Item(fetch=("fetch",)))
    line, other = "neg = Identity(nearest) T=float", "neg = Identity(nearest) T=half"
    message = "input 0 of 'neg' .Identity. wants dtype DT_HALF, 'nearest' gives DT_INT6"
    with pytest.raises(VerifyError, match=message):
        verify_rewrite(
            given,
            graph_from_text(SWAPPED.replace(line, other)),
            Item(fetch=("fetch",)),
        )


def test_a_changed_function_library_is_refused() -> None:
    made = after()
    made.library.function.add().signature.name = "new"
    with pytest.raises(VerifyError, match="the function library was changed"):
        verify_rewrite(graph_from_text(GIVEN), made, ITEM)


COUNTED = """
    x = Placeholder dtype=bfloat16
    one = Const
    v = VarHandleOp shared_name=v
    count = AssignAddVariableOp(v, one) dtype=float
    check = Assert(p, x) T=bfloat16
    p = Placeholder dtype=bool
    both = NoOp(^count, ^check)
    up = Cast(x, ^both) SrcT=bfloat16 DstT=float
    read = ReadVariableOp(v, ^check) dtype=float
    product = MatMul(up, read)
    fetch = Identity(product)
"""
LOSING = """
    read/tf_amp = ReadVariableOp(v{read_waits_for}) dtype=float
    read/down = Cast(read/tf_amp) SrcT=float DstT=bfloat16
    product = MatMul({factor}, read/down{product_waits_for}) T=bfloat16
    product/up = Cast(product) SrcT=bfloat16 DstT=float
    fetch = Identity(product/up)
    up/down = Cast(up) SrcT=float DstT=bfloat16
"""


def counted(**changes: str) -> tuple[GraphDef, GraphDef]:
    """Return a graph in which a product waits for two effects, and a rewritten one."""
    defaults = {"factor": "x", "read_waits_for": "", "product_waits_for": ""}
    kept = COUNTED.partition("    product")[0]
    made = kept + LOSING.format(**{**defaults, **changes})
    return graph_from_text(COUNTED), graph_from_text(made)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"read_waits_for": ", ^check"}, "count"),
        ({"product_waits_for": ", ^count"}, "check"),
    ],
    ids=["update", "assertion"],
)
def test_a_lost_effect_is_refused_by_name(changes: dict[str, str], lost: str) -> None:
    with pytest.raises(VerifyError, match=f"'product' no longer waits for '{lost}'"):
        verify_rewrite(*counted(**changes), Item(fetch=("fetch",)))


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": "up/down"},
        {"product_waits_for": ", ^both"},
        {"product_waits_for": ", ^count", "read_waits_for": ", ^check"},
    ],
    ids=["the cast stays", "both at once", "each in its way"],
)
def test_effects_that_are_waited_for_in_another_way_are_kept(
    changes: dict[str, str],
) -> None:
    verify_rewrite(*counted(**changes), Item(fetch=("fetch",)))


def test_an_effect_that_becomes_something_else_is_refused() -> None:
    before, after = counted(factor="up/down")
    (node,) = (node for node in after.node if node.name == "count")
    node.op = "AssignSubVariableOp"
    with pytest.raises(VerifyError, match=r"'count' .* became AssignSubVariableOp"):
        verify_rewrite(before, after, Item(fetch=("fetch",)))


def test_the_effects_of_a_large_graph_are_checked_in_linear_time() -> None:
    seconds = [min(_seconds_to_check(count) for _ in range(3)) for count in (200, 2000)]
    assert seconds[1] < 40 * seconds[0], seconds


def _seconds_to_check(count: int) -> float:
    """Return what a chain takes in which every product waits for a count of its own."""
    given = ["x0 = Placeholder dtype=bfloat16", "v = VarHandleOp", "one = Const"]
    made = list(given)
    for i in range(count):
        shared = [
            f"count{i} = AssignAddVariableOp(v, one, ^x{i}) dtype=float",
            f"up{i} = Cast(x{i}) SrcT=bfloat16 DstT=float",
            f"read{i} = ReadVariableOp(v, ^count{i}) dtype=float",
        ]
        given += [
            *shared,
            f"product{i} = MatMul(up{i}, read{i})",
            f"x{i + 1} = Cast(product{i}) SrcT=float DstT=bfloat16",
        ]
        made += [
            *shared,
            f"read{i}/down = Cast(read{i}) SrcT=float DstT=bfloat16",
            f"product{i} = MatMul(x{i}, read{i}/down) T=bfloat16",
            f"x{i + 1} = Identity(product{i}) T=bfloat16",
        ]
    old, new = (
        {node.name: node for node in graph_from_text("\n".join(lines)).node}
        for lines in (given, made)
    )
    changed = [name for name in old if new[name].input != old[name].input]
    assert len(changed) == count
    begin = time.process_time()
    assert not list(lost_effects(changed, old, new))
    return time.process_time() - begin
