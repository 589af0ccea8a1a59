"""Which reads of a variable share a cast, and which leave their loop."""

from __future__ import annotations

import pytest
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.framework import meta_graph

from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.graph.view import Graph, Item, Port
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


LOOP = VARIABLE + READ_IN_LOOP.format(constant="true")
CHANGING = VARIABLE + READ_IN_LOOP.format(constant="false")
THREE = f"{VARIABLE}\n" + "\n".join(
    f"read{i} = ReadVariableOp(v) dtype=float" for i in range(3)
)
ROWS = f"""
    {VARIABLE}
    rows = Const dtype=int32
    read = ReadVariableOp(v) dtype=float
    again = ReadVariableOp(v) dtype=float
    update = ResourceScatterSub(v, rows, one) dtype=float Tindices=int32
    w = VarHandleOp shared_name=w
    other = ReadVariableOp(w) dtype=float
    whole = AssignSubVariableOp(w, one) dtype=float
"""


def reads_of(text: str, feed: str = "") -> tuple[Graph, VariableReads]:
    item = Item(feed=tuple(feed.split()))
    view = Graph(graph_from_text(text), item)
    return view, VariableReads.from_view(view)


def between(write: str, waits_for: str = "", before: str = "") -> str:
    """Return two reads of a variable with something that may write it."""
    return f"""
        {VARIABLE}
        {before}
        read1 = ReadVariableOp(v) dtype=float
        write = {write} dtype=float
        read2 = ReadVariableOp(v{waits_for}) dtype=float
    """


def through(*handles: str) -> str:
    """Return a write that comes through nodes that pass a handle on."""
    before = "\n".join(("u = VarHandleOp shared_name=u", *handles))
    return between("AssignVariableOp(same, one, ^read1)", before=before)


@pytest.mark.parametrize(
    ("text", "feed", "expected"),
    [
        (THREE, "", "read1=read0 read2=read0"),
        (THREE, "read0", "read2=read1"),
        (THREE, "read1", "read2=read0"),
        # Reads share only where no write can lie between.
        (between("AssignVariableOp(v, one, ^read1, ^read2)"), "", "read2=read1"),
        (between("AssignVariableOp(v, one, ^read1)"), "", ""),
        (between("AssignVariableOp(v, one, ^read1)", ", ^write"), "", ""),
        (between("AssignVariableOp(v, one)"), "", ""),
        # An unknown op that takes the handle counts as a write.
        (between("NobodyKnowsThisOp(v)"), "", ""),
        # Two handles of one name are one variable, but read separately.
        (
            between(
                "AssignVariableOp(again, one, ^read1)",
                ", ^write",
                "again = VarHandleOp shared_name=v",
            ),
            *("", ""),
        ),
        # A write is seen whichever way the handle takes.
        (
            through(
                "both = IdentityN(one, v) T=[float,resource]",
                "same = Identity(both:1) T=resource",
            ),
            *("", ""),
        ),
        (
            through(
                "both = IdentityN(u, v) T=[resource,resource]",
                "same = Identity(both:0) T=resource",
            ),
            *("", "read2=read1"),
        ),
        (
            through(
                "both = Merge(u, v) T=resource", "same = Identity(both:0) T=resource"
            ),
            *("", ""),
        ),
        # What may be dead at different times does not share.
        (
            f"""
            {VARIABLE}
            p = Placeholder dtype=bool
            branch = Switch(v, p) T=resource
            read1 = ReadVariableOp(branch:0) dtype=float
            read2 = ReadVariableOp(branch:1) dtype=float
            """,
            *("", ""),
        ),
    ],
)
def test_reads_that_surely_see_one_value_share_the_first(
    text: str, feed: str, expected: str
) -> None:
    view, reads = reads_of(text, feed)
    assert all(port.output == 0 for port in reads.canonical.values())
    shared = (
        f"{view.nodes[read.node].name}={view.nodes[first.node].name}"
        for read, first in reads.canonical.items()
    )
    assert " ".join(shared) == expected


CALL = "call = EagerPyFunc(^switch_i) Tin=[] Tout=[] token=t"


@pytest.mark.parametrize(
    ("text", "feed", "moves"),
    [
        (LOOP, "", True),
        (LOOP, "read", False),
        # Its handle may change.
        (CHANGING, "", False),
        # A write may come before it.
        (f"{LOOP}write = AssignVariableOp(v, one, ^exit_i) dtype=float", "", True),
        (
            f"{LOOP}write = AssignVariableOp(enter_v, one, ^switch_i) dtype=float",
            *("", False),
        ),
        (f"{LOOP}write = AssignVariableOp(enter_v, one, ^read) dtype=float", "", False),
        (f"{LOOP}write = AssignVariableOp(v, one) dtype=float", "", False),
        # It waits for Python code.
        (f"{LOOP}{CALL}", "", True),
        (f"{LOOP}{CALL}".replace("^read)", "^read, ^call)"), "", False),
    ],
)
def test_a_read_leaves_its_loop_if_nothing_can_write_before_it(
    text: str, feed: str, moves: bool
) -> None:
    view, reads = reads_of(text, feed)
    enters = {Port(view.index["read"], 0): (view.index["enter_v"],)}
    assert reads.hoists == (enters if moves else {})


def test_a_variable_is_copied_when_it_is_read_only_if_rows_of_it_are_updated() -> None:
    view, reads = reads_of(ROWS)
    assert {view.nodes[i].name for i in reads.copies} == {"read", "again"}


def test_what_a_graph_leaves_out_counts_as_the_default_and_stays_out() -> None:
    text = f"{CHANGING}first = ReadVariableOp(v) dtype=float\n"
    text += "second = ReadVariableOp(v)\n"
    stripped = MetaGraphDef(graph_def=graph_from_text(text))
    meta_graph.strip_graph_default_valued_attrs(stripped)
    given = MetaGraphDef.FromString(stripped.SerializeToString()).graph_def
    assert "container" not in given.node[0].attr, "nothing is left out"
    reads = VariableReads.from_view(Graph(stripped.graph_def))
    assert reads == reads_of(text)[1]
    assert len(reads.canonical) == 1
    assert stripped.graph_def == given
