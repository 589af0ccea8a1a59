"""Equal reads become one without a change in what runs."""

import pytest
import tensorflow as tf

from grappler_pass.equal_reads import merge_equal_reads
from grappler_pass.graph import Item
from tests.soundness import assert_valid
from tests.text_graph import graph_from_text

# The rate is read twice before it is doubled and twice after it.
READS = """
    rate = VarHandleOp dtype=float32 shape=[] shared_name=rate
    two = Const value=2.0
    start = AssignVariableOp(rate, two)
    if/early = ReadVariableOp(rate, ^start)
    if/early_1 = ReadVariableOp(rate, ^start)
    three = Const value=3.0
    if/first = Mul(if/early, three)
    if/second = Sub(if/early_1, three)
    doubled = AddV2(if/early, if/early)
    write = AssignVariableOp(rate, doubled, ^start, ^if/early, ^if/early_1)
    if/late = ReadVariableOp(rate, ^write)
    if/late_1 = ReadVariableOp(rate, ^write)
    if/third = Mul(if/late, if/late_1)
    before = AddV2(if/first, if/second)
    out = AddV2(before, if/third)
"""
ASKED = Item(fetch=("out",))


def reads(graph_def):
    return [node.name for node in graph_def.node if node.op == "ReadVariableOp"]


def outcome(graph_def):
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            return session.run("out:0")


def test_what_is_read_at_one_moment_is_read_once_and_runs_as_before():
    before = graph_from_text(READS)
    given = before.SerializeToString()

    after = merge_equal_reads(before, "if/", ASKED)

    assert before.SerializeToString() == given
    assert_valid(after)
    assert reads(after) == ["if/early", "if/late"]
    assert outcome(after) == outcome(before) == 2 * 3 + (2 - 3) + 4 * 4
    assert merge_equal_reads(after, "if/", ASKED) is None


def test_a_write_waits_for_the_read_that_stays():
    after = merge_equal_reads(graph_from_text(READS), "if/", ASKED)
    (write,) = (node for node in after.node if node.name == "write")
    assert list(write.input) == ["rate", "doubled", "^start", "^if/early"]


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("if/early_1 = ReadVariableOp(rate, ^start)", ("^start", "^start, ^if/first")),
        (
            "if/early_1 = ReadVariableOp(rate, ^start)",
            ("^start)", "^start) @/device:CPU:0"),
        ),
        ("if/early_1", ("if/early_1", "elsewhere")),
    ],
)
def test_reads_stay_that_differ_in_more_than_their_names(line, instead):
    text = READS.replace(line, line.replace(*instead))
    after = merge_equal_reads(graph_from_text(text), "if/", ASKED)
    assert len(reads(after)) == 3
    assert outcome(after) == outcome(graph_from_text(READS))


def test_a_read_stays_that_is_fetched_or_whose_device_others_are_to_share():
    graph_def = graph_from_text(READS)
    fetched = Item(fetch=("out", "if/early_1"))
    assert "if/early_1" in reads(merge_equal_reads(graph_def, "if/", fetched))

    last = graph_def.node[-1].attr["_class"].list.s
    last.append(b"loc:@if/early_1")
    assert "if/early_1" in reads(merge_equal_reads(graph_def, "if/", ASKED))
    for node in graph_def.node:
        node.device = "/device:CPU:0"
    after = merge_equal_reads(graph_def, "if/", ASKED)
    assert "if/early_1" not in reads(after)
    assert all("_class" not in node.attr for node in after.node)
