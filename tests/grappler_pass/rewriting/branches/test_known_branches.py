"""A branch of a known predicate is taken at once, and nothing else changes."""

import pytest
from tensorflow.python.framework import tensor_util

from grappler_pass.graph.view import Item
from grappler_pass.rewriting.branches import without_known_branches
from tests.branch_graphs import outcome
from tests.soundness import assert_valid
from tests.text_graph import graph_from_text

BRANCHES = """
    x = Placeholder
    asked = Placeholder dtype=bool
    taken = Const(^x) dtype=bool value=1
    if/pred = Switch(taken, taken) T=bool
    if/no = Identity(if/pred) T=bool
    if/yes = Identity(if/pred:1) T=bool
    if/in = Switch(x, taken)
    twice = AddV2(if/in:1, if/in:1, ^if/yes)
    minus = Neg(if/in)
    third = Const(^if/no) value=3.0
    lower = Sub(minus, third)
    chosen = Merge(twice, lower, ^lower) N=2
    out = Neg(chosen, ^if/pred)
"""
ITEM = Item(fetch=("out",))


def graph_of(text, taken=True):
    graph_def = graph_from_text(text)
    for node in graph_def.node:
        if node.name == "taken":
            value = tensor_util.make_tensor_proto(taken)
            node.attr["value"].tensor.CopyFrom(value)
    return graph_def


@pytest.mark.parametrize("taken", [True, False])
def test_a_graph_without_a_known_branch_gives_the_same(taken):
    before = graph_of(BRANCHES, taken)
    given = before.SerializeToString()

    after = without_known_branches(before, "if/", ITEM)

    assert before.SerializeToString() == given
    assert_valid(after)
    assert not {"Switch", "Merge"} & {node.op for node in after.node}
    assert ("twice" in {node.name for node in after.node}) == taken
    # What waits for the predicate still does.
    inputs = {node.name: list(node.input) for node in after.node}
    assert inputs["if/pred"] == ["taken"] and inputs["if/in"] == ["x", "^taken"]
    feed = {"x:0": 3.0}
    assert outcome(after, feed) == outcome(before, feed)
    assert without_known_branches(after, "if/", ITEM) is None


NESTED = BRANCHES.replace(
    "twice = AddV2(if/in:1, if/in:1, ^if/yes)",
    """
    if/inner = Switch(if/in:1, asked)
    plus = Neg(if/inner)
    inner = Merge(if/inner:1, plus) N=2
    twice = AddV2(inner, inner, ^if/yes)
    """,
)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_a_branch_within_that_is_not_known_stays_or_goes_with_its_own(taken, asked):
    before = graph_of(NESTED, taken)

    after = without_known_branches(before, "if/", ITEM)

    assert_valid(after)
    switches = [node.name for node in after.node if node.op == "Switch"]
    assert switches == (["if/inner"] if taken else [])
    feed = {"x:0": 3.0, "asked:0": asked}
    assert outcome(after, feed) == outcome(before, feed)


@pytest.mark.parametrize(
    ("line", "instead", "fetch"),
    [
        ("taken = Const(^x) dtype=bool value=1", "taken = Identity(asked)", "out"),
        ("out = Neg(chosen", "told = Neg(chosen:1) T=int32\nout = Neg(chosen", "out"),
        ("minus = Neg(if/in)", "minus = Enter(if/in) frame_name=loop", "out"),
        ("", "", "lower"),
        ("", "", "if/in"),
    ],
)
def test_branches_stay_where_more_hangs_on_them(line, instead, fetch):
    assert line in BRANCHES
    before = graph_from_text(BRANCHES.replace(line, instead) if line else BRANCHES)

    item = Item(fetch=("out", fetch))

    assert without_known_branches(before, "if/", item) is None


def test_branches_of_others_stay():
    assert without_known_branches(graph_of(BRANCHES), "else/", ITEM) is None
