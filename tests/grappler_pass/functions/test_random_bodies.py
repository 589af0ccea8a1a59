"""Random programs whose loops, branches and nested functions are left as functions."""

from __future__ import annotations

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.functions.bodies import bodies_of, with_bodies
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Settings
from tests.equivalence import Baseline
from tests.random_graphs import random_graph
from tests.rewriters import rewritten_by, settings_of
from tests.soundness import assert_valid

# Of the first 45, those of which most functions change.
SEEDS = (7, 20, 41)
LEVELS = (("bfloat16", "O1"), ("float16", "O2"))


def rewritten_bodies(
    graph_def: GraphDef, item: Item, settings: Settings
) -> dict[str, GraphDef]:
    """Return the bodies that change, by name; the outermost by the empty one."""
    found = bodies_of(
        graph_def, item, lambda: shapes_from_graph_def(graph_def), settings.lists
    )
    rewrites = {b.name: rewritten_by(b.graph_def, b.item, settings) for b in found}
    return {name: r.graph_def for name, r in rewrites.items() if r.changed}


@pytest.mark.parametrize("seed", SEEDS)
def test_bodies_compute_the_same_up_to_rounding(seed: int) -> None:
    baseline = Baseline.from_program(random_graph(seed), capture=False)
    graph_def, item = baseline.captured.graph_def, baseline.captured.item
    for low_dtype, level in LEVELS:
        settings = settings_of(low_dtype, level, seed=seed, margin=-1e9)
        changed = rewritten_bodies(graph_def, item, settings)
        assert any(changed), "no function changed: choose another seed"
        after = with_bodies(graph_def, changed, lambda name: f"{name}_low")
        assert_valid(after)
        comparison = baseline.compare(after, low_dtype)
        assert comparison.ok, f"{low_dtype}: {comparison}"
