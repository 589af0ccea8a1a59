"""Which reads of a variable share a cast, and which leave their loop."""

from __future__ import annotations

import pytest
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.framework import meta_graph

from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.graph.view import GraphView, Item, Port
from tests.text_graph import graph_from_text

VARIABLE = """
    v = VarHandleOp shared_name=v
    one = Const
"""
READ_IN_LOOP = """
    start = Const dtype=int32 value=0
    enter_i = Enter(start) frame_name=loop T=int32
    enter_v = Enter(v) frame_name=loop is_constant={constant} T=resource
    merge_i = Merge(enter_i, next_i) T=int32
    limit = Const(^merge_i) dtype=int32 value=5
    less = Less(merge_i, limit) T=int32
    cond = LoopCond(less)
    switch_i = Switch(merge_i, cond) T=int32
    step = Const(^switch_i) dtype=int32 value=1
    read = ReadVariableOp(enter_v, ^switch_i) dtype=float
    add = AddV2(switch_i:1, step, ^read) T=int32
    next_i = NextIteration(add) T=int32
    exit_i = Exit(switch_i) T=int32
"""


def reads_of(text: str, feed: str = "") -> tuple[GraphView, VariableReads]:
    item = Item(feed=tuple(feed.split()))
    view = GraphView.from_graph_def(graph_from_text(text), item)
    return view, VariableReads.from_view(view)


def shared(text: str, feed: str = "") -> dict[str, str]:
    view, reads = reads_of(text, feed)
    return {
        view.nodes[p.node].name: view.nodes[q.node].name
        for p, q in reads.canonical.items()
    }


def hoisted(text: str, feed: str = "") -> dict[str, list[str]]:
    view, reads = reads_of(text, feed)
    return {
        view.nodes[p.node].name: [view.nodes[e].name for e in enters]
        for p, enters in reads.hoists.items()
    }


def test_three_reads_without_a_write_are_one() -> None:
    text = VARIABLE + "\n".join(
        f"read{i} = ReadVariableOp(v) dtype=float" for i in range(3)
    )
    assert shared(text) == {"read1": "read0", "read2": "read0"}
    assert shared(text, feed="read0") == {"read2": "read1"}
    assert shared(text, feed="read1") == {"read2": "read0"}


def test_two_handles_of_one_name_are_one_variable_but_read_separately() -> None:
    text = """
        v = VarHandleOp shared_name=v
        again = VarHandleOp shared_name=v
        one = Const
        read1 = ReadVariableOp(v) dtype=float
        write = AssignVariableOp(again, one, ^read1) dtype=float
        read2 = ReadVariableOp(v, ^write) dtype=float
    """
    assert shared(text) == {}


@pytest.mark.parametrize(
    ("write", "second_waits_for", "may_share"),
    [
        ("AssignVariableOp(v, one, ^read1, ^read2)", "", True),
        ("AssignVariableOp(v, one, ^read1)", "", False),
        ("AssignVariableOp(v, one, ^read1)", ", ^write", False),
        ("AssignVariableOp(v, one)", "", False),
    ],
    ids=["after both", "unordered", "between", "any time"],
)
def test_reads_share_only_where_no_write_can_lie_between(
    write: str, second_waits_for: str, may_share: bool
) -> None:
    text = f"""
        {VARIABLE}
        read1 = ReadVariableOp(v) dtype=float
        write = {write} dtype=float
        read2 = ReadVariableOp(v{second_waits_for}) dtype=float
    """
    assert bool(shared(text)) == may_share


def test_reads_that_may_be_dead_at_different_times_do_not_share() -> None:
    text = """
        v = VarHandleOp shared_name=v
        p = Placeholder dtype=bool
        branch = Switch(v, p) T=resource
        read1 = ReadVariableOp(branch:0) dtype=float
        read2 = ReadVariableOp(branch:1) dtype=float
    """
    assert shared(text) == {}


def test_an_unknown_op_that_takes_the_handle_counts_as_a_write() -> None:
    text = f"""
        {VARIABLE}
        read1 = ReadVariableOp(v) dtype=float
        call = NobodyKnowsThisOp(v)
        read2 = ReadVariableOp(v) dtype=float
    """
    assert shared(text) == {}


def test_a_read_of_a_loop_invariant_handle_leaves_the_loop() -> None:
    text = VARIABLE + READ_IN_LOOP.format(constant="true")
    assert hoisted(text) == {"read": ["enter_v"]}
    assert hoisted(text, feed="read") == {}


def test_a_read_stays_if_its_handle_may_change() -> None:
    assert hoisted(VARIABLE + READ_IN_LOOP.format(constant="false")) == {}


@pytest.mark.parametrize(
    ("write", "may_move"),
    [
        ("write = AssignVariableOp(v, one, ^exit_i) dtype=float", True),
        ("write = AssignVariableOp(enter_v, one, ^switch_i) dtype=float", False),
        ("write = AssignVariableOp(enter_v, one, ^read) dtype=float", False),
        ("write = AssignVariableOp(v, one) dtype=float", False),
    ],
    ids=["after the loop", "in the loop", "in the loop after it", "any time"],
)
def test_a_read_stays_if_a_write_may_come_before_it(write: str, may_move: bool) -> None:
    text = VARIABLE + READ_IN_LOOP.format(constant="true") + write
    assert bool(hoisted(text)) == may_move


def test_the_port_of_the_first_read_stands_for_the_others() -> None:
    view, reads = reads_of(
        VARIABLE
        + "read0 = ReadVariableOp(v) dtype=float\n"
        + "read1 = ReadVariableOp(v) dtype=float\n"
    )
    first, second = view.index["read0"], view.index["read1"]
    assert reads.canonical == {Port(second, 0): Port(first, 0)}


def test_a_variable_is_copied_when_it_is_read_only_if_rows_of_it_are_updated() -> None:
    text = (
        VARIABLE
        + """
        rows = Const dtype=int32
        read = ReadVariableOp(v) dtype=float
        again = ReadVariableOp(v) dtype=float
        update = ResourceScatterSub(v, rows, one) dtype=float Tindices=int32
        w = VarHandleOp shared_name=w
        other = ReadVariableOp(w) dtype=float
        whole = AssignSubVariableOp(w, one) dtype=float
    """
    )
    view, reads = reads_of(text)
    assert {view.nodes[i].name for i in reads.copies} == {"read", "again"}


def test_what_a_graph_leaves_out_counts_as_the_default_and_stays_out() -> None:
    text = VARIABLE + READ_IN_LOOP.format(constant="false")
    text += "first = ReadVariableOp(v) dtype=float\nsecond = ReadVariableOp(v)\n"
    stripped = MetaGraphDef(graph_def=graph_from_text(text))
    meta_graph.strip_graph_default_valued_attrs(stripped)
    given = MetaGraphDef.FromString(stripped.SerializeToString()).graph_def
    assert "container" not in given.node[0].attr, "nothing is left out"
    reads = VariableReads.from_view(GraphView.from_graph_def(stripped.graph_def))
    assert reads == reads_of(text)[1]
    assert len(reads.canonical) == 1
    assert stripped.graph_def == given


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_read_stays_if_it_waits_for_python_code(is_awaited: bool) -> None:
    text = VARIABLE + READ_IN_LOOP.format(constant="true")
    text += "call = EagerPyFunc(^switch_i) Tin=[] Tout=[] token=t"
    if is_awaited:
        text = text.replace("^read)", "^read, ^call)")
    assert bool(hoisted(text)) == (not is_awaited)


@pytest.mark.parametrize(
    ("handles", "may_share"),
    [
        ("both = IdentityN(one, v) T=[float,resource]\nsame = Identity(both:1)", False),
        ("both = IdentityN(u, v) T=[resource,resource]\nsame = Identity(both:0)", True),
        ("both = Merge(u, v) T=resource\nsame = Identity(both:0)", False),
    ],
    ids=["passed on", "another passed on", "one of two"],
)
def test_a_write_is_seen_whichever_way_the_handle_takes(
    handles: str, may_share: bool
) -> None:
    text = f"""
        {VARIABLE}
        u = VarHandleOp shared_name=u
        {handles} T=resource
        read1 = ReadVariableOp(v) dtype=float
        write = AssignVariableOp(same, one, ^read1) dtype=float
        read2 = ReadVariableOp(v) dtype=float
    """
    assert bool(shared(text)) == may_share
