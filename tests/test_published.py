"""Predictions beside published figures: the graphs, XLA's fusion, the table."""

import pytest
import tensorflow as tf

from benchmarks.fused_estimate import fused_seconds
from benchmarks.published import CASES, planned_draft
from benchmarks.published_report import Comparison, markdown
from benchmarks.training_graphs import convolutional, others, words
from grappler_pass.costs import DeviceProfile

V100 = DeviceProfile.load("v100").roofline
MILLION = 1 << 20


def draft_of(build, *, scaled=False):
    """The planned draft of a step that trains by gradient descent."""
    return planned_draft(words.training_step(build, words.momentum, scaled=scaled))


def layered_loss():
    x = words.dense(words.floats(4096, 1024), 1024)
    for _ in range(6):
        x = tf.nn.relu(x) * 1.5
    return tf.reduce_sum(words.dense(x, 1024))


def test_fusion_spares_what_lies_between_elementwise_ops():
    draft = draft_of(layered_loss)
    plain, fused = draft.plan.seconds_before, fused_seconds(draft, V100, mixed=False)
    size = 4 * 4096 * 1024
    # Six of each, forward and backward: a read and a write saved per op, less the ends.
    saved = 2 * (2 * 12 - 4) * size / V100.bytes_per_second["float32"]
    assert 0.5 * saved < plain - fused < 2.0 * saved


def test_fusion_changes_nothing_about_products():
    def loss():
        x = words.floats(4096, 1024)
        return tf.reduce_sum(words.dense(words.dense(x, 1024), 1024))

    draft = draft_of(loss)
    products = sum(
        seconds
        for node, seconds in zip(draft.view.nodes, draft.prices.float32, strict=True)
        if node.op == "MatMul"
    )
    assert products < fused_seconds(draft, V100, mixed=False)
    assert products > 0.5 * draft.plan.seconds_before


def test_mixed_precision_is_faster_fused_or_not():
    draft = draft_of(layered_loss, scaled=True)
    assert draft.plan.predicted_speedup > 1.5
    fused = [fused_seconds(draft, V100, mixed=mixed) for mixed in (False, True)]
    assert fused[0] > 1.5 * fused[1]


def test_a_scaled_step_tests_its_gradients():
    plain, scaled = (others.ncf(1024, scaled=scaled) for scaled in (False, True))
    assert len(scaled.fetches) == len(plain.fetches) + 1
    count = [
        sum(node.op == "IsFinite" for node in step.graph_def.node)
        for step in (plain, scaled)
    ]
    # Four embeddings, and weights and biases of four layers.
    assert count == [0, 12]


def test_the_graph_of_u_net_has_its_published_size():
    graph = convolutional.unet(1).graph_def
    kernels = [
        [size.size for size in node.attr["shape"].shape.dim]
        for node in graph.node
        if node.op == "VarHandleOp" and node.name.startswith("kernel")
    ]
    weights = [kernel for kernel in kernels if len(kernel) == 4]
    trained = weights[: 4 * 2 + 2 + 4 * 3 + 1]
    millions = sum(a * b * c * d for a, b, c, d in trained) / 1e6
    # Ronneberger et al., arXiv:1505.04597: 23 convolutional layers, 31 million weights.
    assert len(trained) == 23 and millions == pytest.approx(31.0, abs=0.1)


def test_every_case_names_its_source():
    assert len(CASES) >= 6
    assert all(case.source and case.published > 1.0 for case in CASES)


def test_the_table_shows_errors_and_their_mean():
    def row(name, seconds, xla):
        return Comparison(
            name, 10, (8, 16), 3.0, (4.0, 12.0), seconds, (4.0, 4.0), xla, "a paper"
        )

    text = markdown([row("one", (2.0, 2.0), True), row("two", (3.0, 2.0), False)])
    assert "| one* | 3.00 | 2.00 | -33% | 4 (4) | 8 (12) | 2.00 |" in text
    assert "| two | 3.00 | 3.00 | +0% | 2.667 (4) | 8 (12) | - |" in text
    assert "Mean error: 17%; 33% over the 1 run with XLA." in text
    assert "input pipeline" in text
