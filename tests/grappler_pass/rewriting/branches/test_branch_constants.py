"""Constants of a branch are freed only where nothing runs that did not run before."""

import pytest

from grappler_pass.graph.view import Item
from grappler_pass.rewriting.branches.constants import free_constants
from tests.branch_graphs import outcome
from tests.soundness import assert_valid
from tests.text_graph import graph_from_text

# Where it is taken, the count goes up by three.
BRANCH = """
    taken = Placeholder dtype=bool
    count = VarHandleOp dtype=float32 shape=[] shared_name=count
    zero = Const value=0.0
    start = AssignVariableOp(count, zero)
    if/pred = Switch(taken, taken, ^start) T=bool
    if/no = Identity(if/pred) T=bool
    if/yes = Identity(if/pred:1) T=bool
    if/one = Const(^if/yes) value=1.0
    if/two = Const(^if/yes) value=2.0
    if/more = ReadVariableOp(count, ^if/yes)
    if/next = AddV2(if/more, if/one)
    if/write = AssignVariableOp(count, if/next)
    if/add = AssignAddVariableOp(count, if/two, ^if/write)
    if/done = Merge(if/yes, if/no, ^if/add) N=2 T=bool
    out = ReadVariableOp(count, ^if/done)
"""
ASKED = Item(fetch=("out",))


def freed(before, after):
    waiting = {node.name for node in before.node if node.op == "Const" and node.input}
    return {node.name for node in after.node if not node.input} & waiting


def test_constants_wait_for_nothing_and_the_branch_runs_as_before():
    before = graph_from_text(BRANCH)
    given = before.SerializeToString()

    after = free_constants(before, "if/", ASKED)

    assert before.SerializeToString() == given
    assert_valid(after)
    assert freed(before, after) == {"if/one", "if/two"}
    for taken, value in ((True, 3.0), (False, 0.0)):
        feed = {"taken:0": taken}
        assert outcome(after, feed) == outcome(before, feed) == value
    assert free_constants(after, "if/", ASKED) is None


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        # Nothing else keeps the addition from running.
        ("if/two, ^if/write", "if/two"),
        # A choice is alive where one of its inputs is.
        (
            "if/add = AssignAddVariableOp(count, if/two",
            "if/chosen = Merge(if/two, if/two) N=2\n"
            "if/add = AssignAddVariableOp(count, if/chosen",
        ),
        # By it alone the addition waits for what is aside.
        (
            "if/two = Const(^if/yes)",
            "aside = NoOp\nif/two = Const(^if/yes, ^aside)",
        ),
        ("if/two", "elsewhere"),
    ],
)
def test_a_constant_stays_that_something_waits_by(part, instead):
    before = graph_from_text(BRANCH.replace(part, instead))
    after = free_constants(before, "if/", ASKED)
    assert freed(before, after) == {"if/one"}


def test_a_constant_stays_that_is_fetched_or_belongs_to_a_round_of_a_loop():
    fetched = Item(fetch=("out", "if/one", "if/two"))
    assert free_constants(graph_from_text(BRANCH), "if/", fetched) is None
    entered = BRANCH.replace(
        "if/pred = Switch(taken, taken, ^start)",
        "in = Enter(taken) T=bool frame_name=loop\n    if/pred = Switch(in, in)",
    )
    assert free_constants(graph_from_text(entered), "if/", ASKED) is None
