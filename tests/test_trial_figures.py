"""What the figures of a trial say, and how much time and memory it takes."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.draft import Trial
from grappler_pass.graph import Item
from grappler_pass.shapes import shapes_from_graph_def
from tf_amp.tuning import trial as trials
from tf_amp.tuning.judging import Judgment
from tf_amp.tuning.sandbox import NotRunnable
from tf_amp.tuning.trial import Comparison, compare


def _comparison(ratios: list[float], seconds: float = 0.1) -> Comparison:
    return Comparison(tuple((seconds * ratio, seconds) for ratio in ratios))


def _trial(
    graph_def: GraphDef, result: tf.Tensor, before: float, after: float
) -> Trial:
    """Return a graph against itself, with the seconds predicted of both."""
    item, shapes = Item(fetch=(result.op.name,)), shapes_from_graph_def(graph_def)
    return Trial(graph_def, graph_def, item, shapes, before, after)


@pytest.mark.parametrize(
    ("ratios", "faster"),
    [
        ([1.6, 1.5, 1.7], True),
        ([0.5, 0.6, 0.55], False),
        ([1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 1.0, 1.0, 0.99, 1.01, 1.0, 1.0], False),
        ([1.03, 0.97, 1.2, 0.9, 1.1], None),
        ([1.05], None),
        ([5.0, 0.2, 1.0, 1.3], None),
    ],
)
def test_faster_is_what_is_beyond_noise(
    ratios: list[float], faster: bool | None
) -> None:
    assert _comparison(ratios, 0.3).is_faster is faster


def test_a_few_quick_steps_decide_nothing() -> None:
    assert _comparison([5.0, 5.0, 5.0, 5.0], 1e-4).is_faster is None


def test_one_disturbed_pair_changes_nothing() -> None:
    calm = [1.5, 1.52, 1.48, 1.51, 1.5]
    assert _comparison([*calm, 40.0]).ratio == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize(
    ("ratio", "covered", "is_sure", "faster"),
    [
        (1.01, 1.0, True, True),
        (1.01, 1.0, False, False),
        (0.99, 1.0, True, False),
        (1.2, 1.0, False, True),
        (1.2, 0.1, False, False),
        (1.2, 0.1, True, True),
    ],
)
def test_an_open_trial_counts_for_what_it_leans_to(
    ratio: float, covered: float, is_sure: bool, faster: bool
) -> None:
    judgment = Judgment(_comparison([ratio] * 3, 0.01), covered)
    assert judgment.is_faster is None
    assert judgment.leans_faster(is_sure=is_sure) is faster


def test_a_loop_without_end_is_given_up() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 4])
        result = tf.while_loop(lambda y: y[0, 0] > -1.0, lambda y: [y * 1.0], [x])[0]
    trial = _trial(graph.as_graph_def(), result, 1e-3, 1e-3)
    with pytest.raises(NotRunnable):
        compare(trial, 1.0)


def test_too_long_a_step_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "opened", None)
    with tf.Graph().as_default() as graph:
        result = tf.linalg.matmul(tf.ones([4, 4]), tf.ones([4, 4]))
    trial = _trial(graph.as_graph_def(), result, 2.0, 1.0)
    with pytest.raises(NotRunnable, match="about 2 s"):
        compare(trial, 3.0)


class _SlowSteps:
    """Stands in for a session whose steps take longer than was predicted."""

    count = 0

    def seconds(self, name: str, timeout_seconds: float) -> float:
        self.count += 1
        time.sleep(0.1)
        return 0.1


def test_runs_that_would_exceed_the_time_are_not_begun() -> None:
    session = _SlowSteps()
    assert list(trials._pairs(session, time.perf_counter() + 0.25)) == []
    assert session.count == 2


def test_variables_that_would_fill_the_memory_are_not_copied() -> None:
    with tf.Graph().as_default() as graph:
        table = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[1 << 20, 1 << 18])
        rows = tf.raw_ops.ResourceGather(
            resource=table, indices=[1, 2], dtype=tf.float32
        )
    trial = _trial(graph.as_graph_def(), rows, 1e-3, 1e-3)
    with pytest.raises(NotRunnable, match="MiB"):
        compare(trial, 1.0)
