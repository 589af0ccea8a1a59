"""A rewritten graph passes on what cuDNN leaves for its backward kernels, uncast."""

from __future__ import annotations

import pytest
import tensorflow as tf

from grappler_pass.graph.view import Item
from tests.grappler_pass.eligibility.test_cases import graph_called
from tests.rewriters import ArbitraryPrices, rewritten_by, settings_of
from tests.text_graph import graph_from_text


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_the_rewritten_graph_hands_a_reserve_space_on_as_it_is(level: str) -> None:
    graph_def = graph_from_text(graph_called("reserve_spaces", "HELD"))
    models = dict.fromkeys(("CPU", "ABSENT_GPU"), ArbitraryPrices(0))
    settings = settings_of("float16", level, models=models, exclude=("^grad$",))
    made = rewritten_by(graph_def, Item(fetch=("fetch",)), settings).graph_def
    nodes = {node.name: node for node in made.node}
    assert nodes["held"].input[0] == "norm:5"
    assert nodes["grad"].input[5] == "held"
    assert nodes["held"].attr["T"].type == tf.float32
    types = [nodes[name].attr["T"].type for name in ("conv", "norm", "grad")]
    assert types == [tf.float16, tf.float32, tf.float32]
