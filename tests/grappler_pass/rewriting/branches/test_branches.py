"""Branches are lightened without a change in what runs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.executed import count_step_nodes
from grappler_pass.graph.view import Item
from grappler_pass.rewriting.loss_scales import lighten_branches
from tests.branch_graphs import outcome
from tests.soundness import assert_valid
from tests.text_graph import graph_from_text
from tf_amp import DynamicLossScale, mixed_precision_scope

BRANCHES = """
    x = Placeholder
    taken = Placeholder dtype=bool
    if/pred = Switch(taken, taken) T=bool
    if/no = Identity(if/pred) T=bool
    if/yes = Identity(if/pred:1) T=bool
    if/in = Switch(x, taken)
    if/passed = Identity(if/in:1, ^if/yes)
    twice = AddV2(if/passed, if/passed)
    minus = Neg(if/in)
    out = Merge(twice, minus) N=2
"""


pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def switches(graph_def):
    return sum(node.op == "Switch" for node in graph_def.node)


def test_a_branch_takes_what_is_outside_without_a_switch_and_runs_as_before():
    before = graph_from_text(BRANCHES)
    given = before.SerializeToString()

    after = lighten_branches(before, "if/", Item(fetch=("out",)))

    assert before.SerializeToString() == given
    assert_valid(after)
    assert switches(after) == 1
    assert len(after.node) == len(before.node) - 2
    for taken in (True, False):
        feed = {"x:0": 3.0, "taken:0": taken}
        assert outcome(after, feed) == outcome(before, feed)
    assert lighten_branches(after, "if/", Item(fetch=("out",))) is None


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("minus = Neg(if/in)", "minus = Neg(if/in, ^if/in)"),
        ("minus = Neg(if/in)", "minus = Neg(if/in) @/device:CPU:1"),
        ("minus) N=2", "if/in) N=2"),
        ("if/no = Identity(if/pred) T=bool", ""),
        (
            "taken = Placeholder",
            "asked = Placeholder dtype=bool\ntaken = LoopCond(asked)",
        ),
    ],
)
def test_a_switch_stays_that_more_than_its_branch_needs(line, instead):
    graph_def = graph_from_text(BRANCHES.replace(line, instead))
    after = lighten_branches(graph_def, "if/", Item())
    assert after is None


def test_a_switch_stays_whose_device_others_are_to_share():
    graph_def = graph_from_text(BRANCHES)
    graph_def.node[-2].attr["_class"].list.s.append(b"loc:@if/in")
    assert lighten_branches(graph_def, "if/", Item()) is None
    for node in graph_def.node:
        node.device = "/device:CPU:0"
    after = lighten_branches(graph_def, "if/", Item())
    assert all("_class" not in node.attr for node in after.node)


def test_a_switch_stays_that_is_fetched():
    graph_def = graph_from_text(BRANCHES)
    assert lighten_branches(graph_def, "if/", Item(fetch=("if/in",))) is None


def test_a_step_with_dynamic_scaling_keeps_to_its_budget_of_nodes():
    x = tf.constant(np.ones((4, 8), np.float32))

    def nodes(loss_scale):
        with mixed_precision_scope("bfloat16", loss_scale=loss_scale):
            model = keras.Sequential([keras.layers.Dense(8) for _ in range(3)])
            model.build((4, 8))
            optimizer = keras.optimizers.Adam()
            optimizer.build(model.trainable_variables)

            @tf.function
            def step(x):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(x) ** 2)
                weights = model.trainable_variables
                optimizer.apply(tape.gradient(loss, weights), weights)
                return loss

            return count_step_nodes(lambda: step(x))

    assert nodes(DynamicLossScale()) - nodes("none") <= 40 + 6 * 6
