"""Casts that only the backward pass reads wait for it, and change no number."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.type_slots import SlotTable
from grappler_pass.graph.view import Graph, Item
from grappler_pass.planning.draft import CastPlan, Draft, plan_casts
from grappler_pass.planning.late_casts import with_late_casts
from grappler_pass.planning.live_set import largest_live_set
from grappler_pass.rewriting.apply import apply
from grappler_pass.rewriting.verify import verify_rewrite
from tests.rewriters import settings_of
from tests.text_graph import graph_from_text

EDGE = 8
INPUTS = f"""
x = Placeholder shape=[{EDGE},{EDGE}]
w = Placeholder shape=[{EDGE},{EDGE}]
"""
# What a gradient reads: an earlier tensor, and what became of it.
GRADIENT = "a = MatMul(x, w); b = MatMul(a, w); c = MatMul(b, w); y = ReluGrad(c, a)"
# The same with more in between, which a later input leads to.
WIDE = """a = MatMul(x, w)
b = MatMul(a, v)
c = MatMul(b, u)
y = ReluGrad(c, a)
u = Placeholder shape=[64,8]
v = Placeholder shape=[8,64]
"""
SHAPES = {"x": (8, 8), "w": (8, 8), "u": (64, 8), "v": (8, 64)}


def colored(lines: str, low: str) -> Draft:
    """Return a draft with the first slot of the named nodes in 16 bits."""
    graph_def = graph_from_text(INPUTS + lines.replace("; ", "\n"))
    view = Graph(graph_def, Item(fetch=("y",), feed=tuple(SHAPES)), Home("CPU"))
    slots = SlotTable.from_view(view)
    firsts = {slots.slots_of[view.index[name]][0] for name in low.split()}
    return Draft(
        graph_def,
        view.item,
        settings_of("bfloat16", "O1"),
        infer_shapes=dict,
        name="",
        view=view,
        slots=slots,
        given=graph_def,
        reads=VariableReads.from_view(view),
        shapes=shapes_from_graph_def(graph_def),
        low=tuple(slot in firsts for slot in range(len(slots.slots))),
    )


def waiting(view: Graph, casts: CastPlan) -> dict[str, list[str]]:
    """Return the names of what casts wait for, by those of what they convert."""
    return {
        view.nodes[each.port.node].name: [view.nodes[i].name for i in each.waits_for]
        for each in casts.conversions
        if each.waits_for
    }


@pytest.mark.parametrize(
    ("lines", "low", "expected"),
    [
        (GRADIENT, "a b c", {"a": ["c"]}),
        # `z` reads it before, and another cast would cost more.
        (f"z = Neg(a); {GRADIENT}; u = Add(y, z)", "a b c", {}),
        # Nothing that it leads to is read beside it.
        ("a = MatMul(x, w); y = ReluGrad(x, a)", "a", {}),
        # A cast to 16 bits is half of what it would let be held.
        (GRADIENT, "b c y", {}),
    ],
)
def test_a_cast_waits_for_what_its_reader_reads_beside_it(
    lines: str, low: str, expected: dict[str, list[str]]
) -> None:
    draft = colored(lines, low)
    casts = plan_casts(draft)
    assert any(each.is_cast for each in casts.conversions)
    assert waiting(draft.view, with_late_casts(draft.view, casts)) == expected


def rewritten(draft: Draft, casts: CastPlan) -> GraphDef:
    changed = apply(dataclasses.replace(draft, casts=casts)).rewritten
    verify_rewrite(draft.given, changed, draft.item)
    return changed


def outcome(graph_def: GraphDef) -> np.ndarray:
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    generator = np.random.default_rng(0)
    feeds = {f"{n}:0": generator.normal(size=each) for n, each in SHAPES.items()}
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run("y:0", feeds)


def test_a_step_holds_less_and_computes_the_same() -> None:
    draft = colored(WIDE, "a b c")
    early = plan_casts(draft)
    graphs = [rewritten(draft, c) for c in (early, with_late_casts(draft.view, early))]
    np.testing.assert_array_equal(*map(outcome, graphs))
    before, after = (
        largest_live_set(draft.view_of(graph), draft.shapes).size for graph in graphs
    )
    # Until `c` is there, only the 16 bits of `a` are.
    assert before - after == 4 * EDGE * EDGE


def test_a_cast_around_a_loop_waits_for_nothing() -> None:
    lines = """a = MatMul(x, w)
        e = Enter(a) frame_name=loop; b = MatMul(e, e); o = Exit(b)
        y = ReluGrad(o, a)"""
    draft = colored(lines, "a")
    casts = with_late_casts(draft.view, plan_casts(draft))
    into_loop = [c for c in casts.conversions if c.readers[0].node == 3]
    assert into_loop and not any(each.waits_for for each in into_loop)
