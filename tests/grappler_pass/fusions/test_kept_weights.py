"""What a graph computes of its variables alone is computed again when they change."""

from __future__ import annotations

import pathlib

import pytest

from grappler_pass.planning.plan import Cause, Reason
from tests.grappler_pass.fusions.rewriting import CASES
from tests.printed_programs import PrintedProgram, programs_beside
from tests.text_graph import text_from_graph

fused = CASES["kept_weights"]


def test_what_is_kept_already_is_not_kept_again() -> None:
    assert not fused(text_from_graph(fused().graph_def)).changed


def test_little_is_not_looked_for_and_listed_with_its_reason() -> None:
    small = {"w": (8, 8), "scaled": (8, 8), "rsqrt": (8,), "sum": (8,)}
    rewrite = fused(**small)
    assert not rewrite.changed
    (declined,) = rewrite.plan.declined_fusions
    assert (declined.rule, declined.node) == ("kept_weights", "sum")
    assert (declined.seconds, declined.reason) == (0.0, Reason(Cause.FUSION_COST))


def test_little_beside_much_is_listed_and_computed_again() -> None:
    little = "few = VarHandleOp dtype=float32 shape=[8]\n"
    little += "given = ReadVariableOp(few) dtype=float32\nflat = Squeeze(given)"
    text = f"{fused.text}\n{little}\nread_by = Add(flat, x)"
    shapes = {**fused.shapes, "given": (8,), "flat": (8,)}
    rewrite = fused._replace(shapes=shapes)(text)
    (fusion,) = rewrite.plan.fusions
    (declined,) = rewrite.plan.declined_fusions
    assert (fusion.node, declined.node) == ("sum", "flat")
    assert declined.reason == Reason(Cause.FUSION_COST)
    assert "read_by = Add(flat, x)" in text_from_graph(rewrite.graph_def)


@pytest.mark.parametrize("program", programs_beside(__file__))
def test_a_program_prints_what_its_text_says(
    program: PrintedProgram, tmp_path: pathlib.Path
) -> None:
    program.check(tmp_path)
