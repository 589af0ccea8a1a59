"""What all matrix products and convolutions of a step take at the least."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from benchmarks.capture_graphs import capture
from benchmarks.price_check import call_of
from grappler_pass.costs.op_work import works_of
from grappler_pass.planning.guessed_shapes import fill_shapes

# Products of two matrices of this size run about as fast as any.
_SIZE = 1024


def best_product() -> Callable[[], object]:
    """Return a function that multiplies two large matrices in bfloat16."""
    left, right = tf.random.stateless_normal((2, _SIZE, _SIZE), (0, 0))
    operands = [tf.cast(each, tf.bfloat16) for each in (left, right)]
    return lambda: tf.matmul(*operands)


def count_in_best_products(step: Callable[[], object]) -> float:
    """Return how many of these have as many flops as all products of a step.

    Args:
      step: calls a function for the first time, in float32.
    """
    graph = capture(step)
    view = graph.view_on_cpu()
    nodes = {node.name: node.proto for node in view.nodes}
    shapes, flops = fill_shapes(view, graph.shapes), 0.0
    for node in view.nodes:
        works = works_of(call_of(node.proto, nodes, shapes), "bfloat16")
        own = sum(work.flops * work.times for work in works if work.product)
        flops += own * view.weight(node.index)
    return flops / (2.0 * _SIZE**3)
