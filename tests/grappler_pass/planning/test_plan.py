"""A plan prints, sorts, filters, and loads back equal from JSON."""

from __future__ import annotations

import dataclasses
import io

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from rich.console import Console

from grappler_pass.graph.type_slots import TypeSlot
from grappler_pass.planning.plan import Cause, Decision, Fusion, Plan, Reason
from tests.processes import ROOT

names = st.text(min_size=1, max_size=12)
seconds = st.floats(0, 1e3, allow_nan=False)
counts = st.integers(0, 2**40)
decisions = st.builds(
    Decision,
    slot=st.builds(TypeSlot, names, names, st.integers(0, 9)),
    op=names,
    dtype=st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
    reason=st.builds(Reason, st.sampled_from(Cause), st.text(max_size=20)),
    seconds_low=st.none() | seconds,
    shape=st.none() | st.lists(st.none() | counts, max_size=4).map(tuple),
    source=names,
    **dict.fromkeys(("seconds_float32", "cast_seconds", "error"), seconds),
)
_COUNTED = "casts casts_removed peak_bytes_before peak_bytes_after weight_bytes_after"
plans = st.builds(
    Plan,
    decisions=st.lists(decisions, max_size=5).map(tuple),
    **dict.fromkeys(("low_dtype", "opt_level", "graph", "profile"), names),
    **dict.fromkeys(("seconds_before", "seconds_after", "gain_error"), seconds),
    **dict.fromkeys(_COUNTED.split(), counts),
)


def row(name: str, cause: Cause, float32: float, low: float | None) -> Decision:
    is_low = cause in (Cause.GAIN, Cause.FORCED)
    return Decision(
        slot=TypeSlot(name, "T", 0),
        op="MatMul" if name.startswith("matmul") else "Exp",
        dtype="bfloat16" if is_low else "float32",
        reason=Reason(cause),
        seconds_float32=float32,
        seconds_low=low,
        shape=(None, 64),
    )


PLAN = Plan(
    decisions=(
        row("matmul1", Cause.GAIN, 2e-3, 1e-3),
        row("exp", Cause.DENY, 1e-3, None),
        row("matmul2", Cause.GAIN, 9e-3, 4e-3),
        row("matmul3", Cause.COST, 5e-3, 6e-3),
    ),
    low_dtype="bfloat16",
    graph="step",
    profile="cpu-avx512-bf16",
    seconds_before=17e-3,
    seconds_after=11e-3,
    casts=3,
    casts_removed=1,
)


@settings(max_examples=100)
@given(plans)
def test_json_loads_back_equal_and_every_row_is_printed(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    plain = Plan(plan.decisions, plan.low_dtype)
    assert str(plain).count("\n") >= len(plan.decisions)
    assert len(plan.sorted_by_value().decisions) == len(plan.decisions)


def test_the_most_valuable_rows_come_first() -> None:
    ranked = [d.slot.node for d in PLAN.sorted_by_value().decisions]
    assert ranked == ["matmul2", "matmul1", "matmul3", "exp"]
    assert [d.slot.node for d in PLAN.top(2).decisions] == ["matmul2", "matmul1"]


def test_rows_are_filtered_by_op_and_reason() -> None:
    def kept(plan: Plan) -> list[str]:
        return [d.slot.node for d in plan.decisions]

    assert kept(PLAN.filter(op="Exp")) == ["exp"]
    assert PLAN.filter(op="Exp").is_empty and not PLAN.is_empty
    assert kept(PLAN.filter(reason="cost")) == ["matmul3"]
    for reason in ("deny", "DENY", "Deny", Cause.DENY):
        assert kept(PLAN.filter(reason=reason)) == ["exp"]
    assert kept(PLAN.filter(reason=Cause.GAIN, op="MatMul")) == ["matmul1", "matmul2"]


def test_the_printed_table_reads_like_this() -> None:
    lines = str(PLAN.top(2)).splitlines()
    assert lines[0] == (
        "step: 2 of 4 float type attributes to bfloat16 (O1, cpu-avx512-bf16), 3 casts "
        "added, 1 removed; predicted step 17 -> 11 ms (1.55x); kept: deny 1, cost 1"
    )
    assert lines[1].split() == (
        "type attribute op dtype f32 ms 16-bit ms cast ms estimate shape reason".split()
    )
    row = "matmul2.T MatMul bfloat16 9.0000 4.0000 0.0000 - ?x64"
    assert lines[2].split()[:8] == row.split()
    assert lines[2].endswith("16 bits are faster here, casts included")


def test_a_terminal_of_80_columns_shows_every_name_whole() -> None:
    name = "model/block_with_a_long_name" * 5
    row = Decision(TypeSlot(name, "T", 0), "MatMul", "float32", Reason(Cause.COST))
    out = io.StringIO()
    Console(file=out, width=80).print(Plan((row,), "bfloat16"))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    first_column = "".join(line[1:24].strip() for line in lines)
    assert f"{name}.T" in first_column


@pytest.mark.parametrize(
    ("cause", "other", "text"),
    [
        (
            Cause.NEIGHBORS,
            9e-4,
            "in 16 bits because its neighbors are (float32 here alone would take 0.9 "
            "ms more, casts included): a list",
        ),
        (Cause.CASTS, 0.0, "(16 bits here alone would take as long, casts included)"),
        (Cause.CASTS, -1e-15, "(16 bits here alone would take as long,"),
        (Cause.MEMORY, -1e-6, "(float32 here alone would take 0.001 ms less, casts"),
        (Cause.GAIN, 9e-4, "16 bits are faster here, casts included: a list"),
        (Cause.NEIGHBORS, None, "in 16 bits because its neighbors are: a list"),
    ],
)
def test_a_reason_is_shown_with_the_figure_that_decided(
    cause: Cause, other: float | None, text: str
) -> None:
    decided = dataclasses.replace(
        PLAN.decisions[0], reason=Reason(cause, "a list"), other_seconds=other
    )
    assert text in decided.why
    assert decided.why in str(dataclasses.replace(PLAN, decisions=(decided,)))
    if other is not None:
        assert decided.times(2.0).other_seconds == 2.0 * other


def test_the_summary_tells_of_memory_and_of_errors_where_they_are_known() -> None:
    known = dataclasses.replace(
        PLAN,
        gain_error=1e-3,
        peak_bytes_before=8 * 2**20,
        peak_bytes_after=5 * 2**20,
    )
    assert (
        "17 -> 11 ms (1.55x, between 1.42x and 1.69x), activations 8 -> 5 MiB; kept"
    ) in known.summary()
    assert "between" not in PLAN.summary() and "MiB" not in PLAN.summary()


@pytest.mark.parametrize(
    ("after", "error", "text"),
    [
        (2e-3, 0.0, "8.50x"),
        (3.87e-3, 11e-3, "4.39x, between 1.14x and 17x"),
        (11e-3, 11e-3, "1.55x, not known before it runs"),
        (16e-3, 2e-3, "1.06x, between 0.94x and 1.20x"),
        (34e-3, 3e-3, "0.50x, between 0.46x and 0.54x"),
    ],
)
def test_a_speed_up_is_shown_with_what_it_may_be(
    after: float, error: float, text: str
) -> None:
    plan = dataclasses.replace(PLAN, seconds_after=after, gain_error=error)
    assert plan.speedup_text == text
    assert text in plan.summary()


def test_prices_have_sources_and_tables_are_set_apart() -> None:
    decision = dataclasses.replace(PLAN.decisions[0], source="measured", error=0.05)
    fusion = Fusion("layer_norms", "mean", 1e-3, Reason(Cause.FUSED))
    plan = dataclasses.replace(PLAN, decisions=(decision,), fusions=(fusion,))
    rows, fusions = str(plan).split("\n\n")
    assert "measured ± 5%" in rows
    assert rows.endswith("casts included") and fusions.startswith("rewrite ")


def test_every_reason_is_explained_where_plans_are_described() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text()
    assert not [c for c in Cause if f"`{c.name.lower()}`" not in page]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "denied",
            r"received 'denied' \(did you mean tied or deny\?\); allowed are gain,",
        ),
        ("zzz", "received 'zzz'; allowed are gain, neighbors,"),
        (3, "received 3; allowed are gain, neighbors,"),
    ],
)
def test_a_cause_that_there_is_not_is_refused(reason, words):
    with pytest.raises(ValueError, match=words):
        Plan((), "bfloat16").filter(reason=reason)
