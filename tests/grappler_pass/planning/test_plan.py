"""A plan prints, sorts, filters, and loads back equal from JSON."""

from __future__ import annotations

import dataclasses
import io

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from rich.console import Console

from grappler_pass.eligibility.reasons import KEPT_FOR, LOW
from grappler_pass.graph.type_slots import TypeSlot
from grappler_pass.planning.plan import Cause, Decision, Fusion, Plan, Reason
from tests.golden_lines import Key, draft_of
from tests.processes import ROOT
from tf_amp.report.plans import tables_of

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
_COUNTED = "casts casts_removed peak_bytes_before peak_bytes_after recomputed"
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
        "step: 45% of the time is in bfloat16. A step is expected to take 11 ms on "
        "cpu-avx512-bf16 instead of 17 ms (1.55x). Why float32: 45% gains nothing in "
        "16 bits, 9% needs its accuracy."
    )
    assert PLAN.details() == (
        "step: 2 of 4 float type attributes to bfloat16 (O1, cpu-avx512-bf16), 3 casts "
        "added, 1 removed; predicted step 17 -> 11 ms (1.55x); kept: deny 1, cost 1"
    )
    assert lines[1].split() == (
        "type attribute op dtype f32 ms 16-bit ms cast ms estimate shape reason".split()
    )
    row = "matmul2.T MatMul bfloat16 9.0000 4.0000 0.0000 - ?x64"
    assert lines[2].split()[:8] == row.split()
    assert lines[2].endswith("16 bits are faster here, casts included")


def printed(plan: Plan, count: int | None = None) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80).print(tables_of(plan, count))
    return out.getvalue().splitlines()


def test_a_terminal_of_80_columns_folds_names_at_slashes() -> None:
    name = "/".join(["model", *["block_with_a_long_name"] * 5, "MatMul"])
    call = TypeSlot(f"StatefulPartitionedCall/{name}", "T", 0)
    row = Decision(call, "MatMul", "float32", Reason(Cause.COST))
    lines = printed(Plan((row,), "bfloat16"))
    assert max(map(len, lines)) <= 80
    folded = [line.strip() for line in lines[lines.index("") :] if "_name/" in line]
    assert len(folded) > 1 and all(line.endswith("_name/") for line in folded)
    assert f"MatMul ? {name}" in "".join(line.strip() for line in lines)


def test_a_terminal_has_fusions_first_and_operations_by_their_reasons() -> None:
    small = row("small", Cause.SUM, 1e-5, None)
    fusion = Fusion("layer_norms", "mean", 1e-3, Reason(Cause.FUSED, "one kernel"))
    plan = dataclasses.replace(
        PLAN, decisions=(*PLAN.decisions, small), fusions=(fusion,)
    )
    assert [" ".join(line.split()) for line in printed(plan, 3)[3:]] == [
        "",
        "fusion times saves ms reason",
        "layer_norms 1 1 certainly faster, in float32 as well: one kernel",
        "",
        "f32 ms 16-bit ms cast ms type, reason, operations",
        "11 5 0 bfloat16, 2 operations: 16 bits are faster here,",
        "casts included",
        "9 4 0 MatMul ?x64 matmul2",
        "2 1 0 MatMul ?x64 matmul1",
        "5 6 - float32, 1 operation: it could be in 16 bits, but",
        "float32 is at least as fast, casts included",
        "5 6 - MatMul ?x64 matmul3",
        "1 - - float32, 1 operation such as Exp: this operation",
        "needs float32",
        "0.01 - - 1 operation for other reasons",
        "",
        "Times are predicted for a machine that runs nothing else. 3 of 5 operations "
        "are",
        "listed; --top N lists more, --top 0 all.",
    ]


@pytest.mark.parametrize(
    ("cause", "other", "text"),
    [
        (
            Cause.NEIGHBORS,
            9e-4,
            "in 16 bits because its neighbors are (float32 here alone would take 0.9 "
            "ms more, casts included). It is on a list",
        ),
        (Cause.CASTS, 0.0, "(16 bits here alone would take as long, casts included)"),
        (Cause.CASTS, -1e-15, "(16 bits here alone would take as long,"),
        (Cause.MEMORY, -1e-6, "(float32 here alone would take 0.001 ms less, casts"),
        (Cause.GAIN, 9e-4, "16 bits are faster here, casts included. It is on a list"),
        (
            Cause.NEIGHBORS,
            None,
            "in 16 bits because its neighbors are. It is on a list",
        ),
    ],
)
def test_a_reason_is_shown_with_the_figure_that_decided(
    cause: Cause, other: float | None, text: str
) -> None:
    decided = dataclasses.replace(
        PLAN.decisions[0], reason=Reason(cause, "It is on a list"), other_seconds=other
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
        held_bytes=2 * 2**20,
    )
    assert (
        "instead of 17 ms (1.55x, between 1.42x and 1.69x), and 5 MiB of memory "
        "(2 of it variables and inputs) instead of 8 MiB. Why"
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


def test_a_speed_up_is_that_over_float32_without_what_the_program_was_traced_with():
    traced = Fusion("optimizer_steps", "adam", 5e-3, Reason(Cause.TRACED))
    own = Fusion("layer_norms", "mean", 1e-3, Reason(Cause.FUSED))
    plan = dataclasses.replace(PLAN, traced_fusions=(traced,), fusions=(own,))
    assert (plan.seconds_float32, plan.seconds_fused) == pytest.approx((22e-3, 16e-3))
    assert plan.predicted_speedup == pytest.approx(2.0)
    assert plan.rewrite_speedup == pytest.approx(17 / 11)
    expected = "11 ms on cpu-avx512-bf16 instead of 22 ms (2.00x; with fusions alone "
    assert expected + "1.38x)" in plan.summary()
    stays = dataclasses.replace(plan, decisions=(), fusions=(), seconds_after=17e-3)
    assert "take 17 ms on cpu-avx512-bf16 instead of 22 ms (1.29x)." in stays.summary()


def test_prices_have_sources_and_tables_are_set_apart() -> None:
    decision = dataclasses.replace(PLAN.decisions[0], source="measured", error=0.05)
    fusion = Fusion("layer_norms", "mean", 1e-3, Reason(Cause.FUSED))
    plan = dataclasses.replace(PLAN, decisions=(decision,), fusions=(fusion,))
    fusions, rows = str(plan).split("\n\n")
    assert "measured ± 5%" in rows
    assert rows.endswith("casts included") and "\nfusion " in fusions


def test_a_summary_has_words_for_each_cause() -> None:
    worded = [cause for causes in KEPT_FOR.values() for cause in causes]
    of_fusions = {Cause.FUSED, Cause.TRACED, Cause.FUSION_COST, Cause.FUSION_OFF}
    assert len(worded) == len({*worded})
    assert {*worded} == {*Cause} - {*LOW} - of_fusions


def test_every_reason_is_explained_where_plans_are_described() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text()
    assert not [c for c in Cause if f"`{c.name.lower()}`" not in page]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "denied",
            r"received 'denied'; did you mean tied or deny\? Allowed are gain,",
        ),
        ("zzz", r"received 'zzz'\. Allowed are gain, neighbors,"),
        (3, r"received 3\. Allowed are gain, neighbors,"),
    ],
)
def test_a_cause_that_there_is_not_is_refused(reason, words):
    with pytest.raises(ValueError, match=words):
        Plan((), "bfloat16").filter(reason=reason)


@pytest.mark.parametrize("profile", ["cpu-generic", "cpu-intel-avx512-bf16"])
def test_a_plan_that_stays_float32_knows_how_fast_16_bits_would_be(
    profile: str,
) -> None:
    stays = draft_of(Key("accumulation", profile, "bfloat16", "O1")).plan
    forced = draft_of(Key("accumulation", profile, "bfloat16", "O2")).plan
    assert stays.is_empty and not forced.is_empty and not forced.fusions
    assert stays.low_speedup == pytest.approx(forced.rewrite_speedup, rel=0.01)
    assert stays.low_speedup < 0.9 and stays.predicted_speedup == 1.0
    products = {row.op for row in stays.decisions if row.is_product}
    assert products == {"MatMul", "_FusedMatMul"}
