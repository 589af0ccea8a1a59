"""Predictions beside published figures: the graphs, XLA's fusion, the table."""

import pytest
import tensorflow as tf

from benchmarks.as_published import layout_seconds
from benchmarks.fused_estimate import fused_seconds
from benchmarks.published import CASES, planned_draft
from benchmarks.published_report import Comparison, markdown
from benchmarks.training_graphs import convolutional, others, words
from grappler_pass.costs import DeviceProfile

V100 = DeviceProfile.load("v100").roofline


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
    both = zip(draft.view.nodes, draft.prices.float32, strict=True)
    products = sum(seconds for node, seconds in both if node.op == "MatMul")
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


# Batch, and milliseconds of the convolutions of a forward pass:
# PaddlePaddle, paddle/contrib/float16/float16_benchmark.md, images channels first.
MEASURED = (
    ("vgg16", 64, 130.11, 28.67),
    ("resnet50", 128, 73.44, 28.40),
)
VGG16 = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)


def vgg16_loss(batch):
    x = words.floats(batch, 224, 224, 3)
    for widths in VGG16:
        for width in widths:
            x = convolutional.convolve(x, width, 3)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return tf.reduce_sum(x)


def forward_convolutions(build):
    """Milliseconds in float32, and in float16 with images turned around."""
    graph = tf.Graph()
    with graph.as_default():
        loss = build()
    draft = planned_draft(words.Step(graph.as_graph_def(), (loss.op.name,)))
    nodes = [n.index for n in draft.view.nodes if "Conv2D" in n.op]
    prices = draft.prices
    low = sum(prices.low[node] for node in nodes) + layout_seconds(draft)
    return 1e3 * sum(prices.float32[node] for node in nodes), 1e3 * low


@pytest.mark.parametrize(("model", "batch", "float32", "float16"), MEASURED)
def test_convolutions_take_what_was_measured_on_a_v100(model, batch, float32, float16):
    losses = {
        "vgg16": lambda: vgg16_loss(batch),
        "resnet50": lambda: convolutional.residual_loss(batch, (3, 4, 6, 3), 1),
    }
    found = forward_convolutions(losses[model])
    assert found[1] == pytest.approx(float16, rel=0.1)
    assert found[0] == pytest.approx(float32, rel=0.25)


def test_the_lists_of_tensorflow_1_keep_softmax_in_float32():
    def loss():
        x = words.dense(words.floats(4096, 1024), 1024)
        return tf.reduce_sum(words.dense(tf.nn.softmax(x), 1024))

    step = words.training_step(loss, words.momentum, scaled=True)
    rows = planned_draft(step, listed=True).plan.decisions
    assert {row.dtype for row in rows if row.op == "Softmax"} == {"float32"}


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
            name, (8, 16), 3.0, (4.0, 12.0), seconds, 4.0, 2, xla, 1.0 - xla, "a paper"
        )

    text = markdown([row("one", (2.0, 2.0), True), row("two", (3.0, 2.0), False)])
    assert "| one* | 3.00 | 2.00 | -33% | 4 (4) | 8 (12) | 1.00 | 2 |" in text
    assert "| two† | 3.00 | 3.00 | +0% | 2.667 (4) | 8 (12) | 1.50 | 2 |" in text
    assert "Mean error: 17%; 33% over the 1 run with XLA; 0% over the 1" in text
    assert "33% over the 1 without a dagger." in text
    assert "found in 2 of 2 graphs" in text
    assert "input pipeline" in text
