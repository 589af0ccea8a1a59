"""A graph whose step is too long for a trial is judged by its dearest parts."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

from grappler_pass.draft import Draft, Trial
from grappler_pass.graph import TRIP_COUNT_GUESS, GraphView
from grappler_pass.pipeline import optimize
from grappler_pass.trying import trial_from_draft
from tests.test_trial import BelievedPrices, Step, _settings, _step_of
from tf_amp.tuning.budget import Budget, Limits
from tf_amp.tuning.judging import Judgment, judge
from tf_amp.tuning.parts import parts_of
from tf_amp.tuning.trial import Comparison, TooLong, compare

_BRANCHES = 12
_TRIPS = 6


def _wide_step() -> Step:
    """Return depthwise convolutions side by side; their gradients are slow low."""
    images = [tf.Variable(tf.ones([8, 32, 32, 64])) for _ in range(_BRANCHES)]
    weight = tf.Variable(tf.ones([5, 5, 64, 1]))

    def step() -> tf.Tensor:
        loss = tf.constant(0.0)
        with tf.GradientTape() as tape:
            inputs = [tf.nn.relu(each) for each in images]
            tape.watch(inputs)
            for each in inputs:
                outputs = tf.nn.depthwise_conv2d(each, weight, [1, 2, 2, 1], "SAME")
                loss += tf.reduce_sum(outputs * outputs)
        gradients = tape.gradient(loss, inputs)
        weight.assign_sub(1e-3 * weight)
        return tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])

    return _step_of(step)


def _loop_step() -> Step:
    """Return a loop of gradients that are slow low, with a list and a shape."""
    weight = tf.Variable(tf.ones([5, 5, 64, 1]))
    count = tf.Variable(_TRIPS)

    def step() -> tf.Tensor:
        value = tf.ones([8, 16, 16, 64]) * weight[0, 0, 0, 0]
        sums = tf.TensorArray(tf.float32, _TRIPS)
        for i in tf.range(count):
            sizes = tf.stack([8, 32, 32, 64 * tf.ones([], tf.int32)])
            grown = tf.nn.depthwise_conv2d_backprop_input(
                sizes, weight, value, [1, 2, 2, 1], "SAME"
            )
            value = tf.nn.relu(grown[:, ::2, ::2, :])
            sums = sums.write(i, tf.reduce_sum(value))
        return tf.reduce_sum(sums.stack())

    return _step_of(step)


def _long_trial(step: Step, step_seconds: float = 12.0) -> Trial:
    """Return a trial whose prices promise much, and a step of seconds."""
    drafts: list[Draft] = []
    optimize(
        step.graph_def,
        step.item,
        _settings(None, BelievedPrices(error=0.01)),
        shapes=lambda: step.shapes,
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    whole = trial_from_draft(drafts[-1])
    scale = step_seconds / whole.seconds_before
    return dataclasses.replace(
        whole,
        seconds_before=scale * whole.seconds_before,
        seconds_after=scale * whole.seconds_after,
        nodes={name: (scale * b, scale * a) for name, (b, a) in whole.nodes.items()},
    )


@pytest.fixture(scope="module")
def trial() -> Trial:
    """Return a trial of many parts outside of loops."""
    return _long_trial(_wide_step())


def test_of_a_long_loop_the_body_is_judged() -> None:
    trial = _long_trial(_loop_step())
    (part,) = (part for part in parts_of(trial, 3.0) if part.runs > 1.0)
    assert part.runs == TRIP_COUNT_GUESS
    ops = {node.op for node in part.trial.after.node}
    assert "DepthwiseConv2dNativeBackpropInput" in ops and "Cast" in ops
    assert not ops & {"Enter", "Merge", "Switch", "TensorListSetItem"}
    assert part.gain == pytest.approx(trial.seconds_before - trial.seconds_after, 0.01)
    judgment = judge(trial, 40.0)
    assert judgment.is_faster is False
    assert judgment.covered > 0.9


def test_without_a_limit_a_long_step_is_judged_by_its_parts() -> None:
    trial = _long_trial(_wide_step(), 60.0)
    without_limit = Budget(Limits()).remaining("graph")
    assert 0.0 < judge(trial, without_limit).covered < 1.0


def test_predictions_by_node_add_up(trial: Trial) -> None:
    before, after = (sum(pair) for pair in zip(*trial.nodes.values(), strict=True))
    assert before == pytest.approx(trial.seconds_before)
    assert after == pytest.approx(trial.seconds_after)


def test_a_long_step_is_rejected_by_its_parts(trial: Trial) -> None:
    with pytest.raises(TooLong):
        compare(trial, 40.0)
    # All that is promised are the gradients, which take several times as long.
    gradients = {n.name for n in trial.before.node if "Backprop" in n.op}
    nodes = {
        name: (before, after if name in gradients else before)
        for name, (before, after) in trial.nodes.items()
    }
    judgment = judge(dataclasses.replace(trial, nodes=nodes), 40.0)
    assert judgment.is_faster is False
    assert 0.0 < judgment.covered < 1.0


def test_parts_come_with_their_casts_and_the_largest_gain_first(trial: Trial) -> None:
    parts = list(parts_of(trial, 3.0))
    gains = [part.gain for part in parts]
    assert len(parts) > 1
    assert gains == sorted(gains, reverse=True)
    assert sum(gains) <= 1.001 * (trial.seconds_before - trial.seconds_after)
    for part in parts:
        casts = {node.op for node in part.trial.after.node} - {
            node.op for node in part.trial.before.node
        }
        assert "Cast" in casts


def test_parts_are_graphs_and_share_no_product(trial: Trial) -> None:
    products: list[str] = []
    for part in parts_of(trial, 3.0):
        once = part.trial
        for graph_def in (once.before, once.after):
            view = GraphView.from_graph_def(graph_def, once.item)
            assert any(name in view.index for name in once.item.fetch)
        products += [n.name for n in once.before.node if n.op.startswith("Depthwise")]
    assert len(products) == len(set(products))


def test_no_part_updates_a_variable(trial: Trial) -> None:
    for part in parts_of(trial, 3.0):
        assert not any("Assign" in node.op for node in part.trial.after.node)


@pytest.mark.parametrize(
    ("ratio", "covered", "faster"),
    [(2.0, 1.0, True), (2.0, 0.1, None), (0.5, 0.1, False)],
)
def test_parts_speak_for_the_whole_only_if_they_are_much_of_it(
    ratio: float, covered: float, faster: bool | None
) -> None:
    comparison = Comparison(((ratio, 1.0),) * 4)
    assert Judgment(comparison, covered).is_faster is faster
