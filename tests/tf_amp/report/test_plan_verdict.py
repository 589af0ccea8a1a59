"""A verdict says in every situation what is known, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from grappler_pass.planning.draft import Outcome
from grappler_pass.planning.plan import (
    Cause,
    Fusion,
    Reason,
    planned_nodes,
)
from tests.grappler_pass.planning.test_layers import plan_of, row
from tf_amp.report.plan_verdict import Observed, next_steps, verdict_of

LOW = row("dense/MatMul", seconds=4e-3, low=1e-3, is_low=True)
KEPT = row("dense/Add", seconds=1e-3)
STEPS = "9 pairs of its own steps"
GAINS = dataclasses.replace(
    plan_of(LOW, KEPT), seconds_before=5e-3, seconds_after=2e-3, profile="cpu-amx-bf16"
)
STAYS = dataclasses.replace(GAINS, decisions=(KEPT,), seconds_after=5e-3)
FUSED = dataclasses.replace(
    STAYS, seconds_after=4e-3, fusions=(Fusion("layer_norms", "norm", 1e-3),)
)
TRACED = dataclasses.replace(
    STAYS, traced_fusions=(Fusion("row_reads", "rows", 1e-3, Reason(Cause.TRACED)),)
)


def kept_for(cause):
    return dataclasses.replace(KEPT, reason=Reason(cause))


SITUATIONS = {
    "predicted": (
        GAINS,
        Observed(),
        "Expected to be 2.50 times as fast as float32; not measured yet. About 50% "
        "of the time is in bfloat16. Its numbers are not verified yet.",
    ),
    "predicted with its error": (
        dataclasses.replace(GAINS, gain_error=5e-4),
        Observed(),
        "Expected to be 2.50 times as fast as float32, between 2.00x and 3.12x; not"
        " measured yet. About 50% of the time is in bfloat16. Its numbers are not "
        "verified yet.",
    ),
    "a rough guess": (
        dataclasses.replace(GAINS, seconds_after=4e-3, gain_error=8e-3),
        Observed(holds=True),
        "Expected to be 1.25 times as fast as float32, which is a rough guess; not "
        "measured yet. About 50% of the time is in bfloat16. Its numbers are "
        "verified against float32.",
    ),
    "predicted to be slower": (
        dataclasses.replace(GAINS, seconds_after=10e-3),
        Observed(holds=False),
        "Expected to be slower than float32: 0.50 times as fast; not measured yet. "
        "About 50% of the time is in bfloat16. Its numbers differ from float32 by "
        "more than is allowed.",
    ),
    "measured": (
        GAINS,
        Observed(ratio=1.99, how=STEPS, holds=True),
        "1.99 times as fast as float32, measured in 9 pairs of its own steps. About"
        " 50% of the time is in bfloat16. Its numbers are verified against float32.",
    ),
    "measured to be slower": (
        GAINS,
        Observed(ratio=0.8, error=0.01, how="40 runs on synthetic data"),
        "Slower than float32: 0.80 times as fast, measured in 40 runs on synthetic "
        "data. About 50% of the time is in bfloat16. Its numbers are not verified "
        "yet.",
    ),
    "measured to be equal": (
        GAINS,
        Observed(ratio=1.03, error=0.02, how="40 runs on synthetic data"),
        "About as fast as float32: 1.03 times, measured in 40 runs on synthetic data."
        " About 50% of the time is in bfloat16. Its numbers are not verified yet.",
    ),
    "not applied": (
        GAINS,
        Observed(ratio=1.01, how=STEPS, is_applied=False),
        "Stays float32: with its plan it was 1.01 times as fast, measured in 9 "
        "pairs of its own steps. That is no clear gain.",
    ),
    "not applied since slower": (
        GAINS,
        Observed(ratio=0.9, how=STEPS, is_applied=False),
        "Stays float32: with its plan it was 0.90 times as fast, measured in 9 "
        "pairs of its own steps. That is slower.",
    ),
    "undecided": (
        dataclasses.replace(GAINS, outcome=Outcome.OPEN.value),
        Observed(),
        "Expected to be 2.50 times as fast as float32; not measured yet. About 50% "
        "of the time is in bfloat16. Its numbers are not verified yet. Applied, "
        "and compared with float32 from the fifth call on.",
    ),
    "fusions alone": (
        FUSED,
        Observed(),
        "Expected to be 1.25 times as fast as float32; not measured yet. All types "
        "stay float32. Its numbers are not verified yet.",
    ),
    "float32": (
        STAYS,
        Observed(),
        "Stays float32: bfloat16 is not expected to be faster on cpu-amx-bf16.",
    ),
    "float32 with fusions that were traced": (
        TRACED,
        Observed(),
        "Stays float32: bfloat16 is not expected to be faster on cpu-amx-bf16. Its "
        "fusions are expected to make it 1.20 times as fast; not measured yet.",
    ),
    "predicted with fusions that were traced": (
        dataclasses.replace(GAINS, traced_fusions=TRACED.traced_fusions),
        Observed(),
        "Expected to be 3.00 times as fast as float32; not measured yet. About 50% "
        "of the time is in bfloat16. Its numbers are not verified yet.",
    ),
    "measured with fusions that were traced": (
        dataclasses.replace(GAINS, traced_fusions=TRACED.traced_fusions),
        Observed(ratio=1.99, how=STEPS, holds=True),
        "1.99 times as fast as float32 with the same fusions, measured in 9 pairs of "
        "its own steps, so about 2.39 times as fast as float32 without tf-amp. About "
        "50% of the time is in bfloat16. Its numbers are verified against float32.",
    ),
    "float32 after a trial": (
        dataclasses.replace(STAYS, decisions=(kept_for(Cause.TRIAL),)),
        Observed(),
        "Stays float32: steps have run both ways, and 16 bits were not faster.",
    ),
    "float32 without choice": (
        dataclasses.replace(STAYS, decisions=(kept_for(Cause.DENY),)),
        Observed(),
        "Stays float32: nothing in it may be in bfloat16.",
    ),
    "float32 by its level": (
        dataclasses.replace(STAYS, decisions=(kept_for(Cause.LEVEL),)),
        Observed(),
        "Stays float32: the optimization level O0 keeps everything in float32.",
    ),
    "nothing to decide": (
        plan_of(),
        Observed(),
        "Stays float32: no operation in it computes with floating-point numbers.",
    ),
    "without prices": (
        plan_of(row("a", seconds=0.0, low=0.0, is_low=True), row("b", seconds=0.0)),
        Observed(),
        "Its speed is not predicted: its operations have no cost estimates. 1 of 2 "
        "operations are in bfloat16. Its numbers are not verified yet.",
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_verdict_says_what_is_known(situation):
    plan, observed, verdict = SITUATIONS[situation]
    assert verdict_of(plan, planned_nodes(plan.decisions), observed) == verdict


def steps_of(plan, **observed):
    return " ".join(
        next_steps(plan, planned_nodes(plan.decisions), Observed(**observed))
    )


def test_what_is_not_known_yet_is_what_to_do_next():
    said = steps_of(GAINS, source="train.py")
    assert "`tf-amp bench train.py`" in said and "`tf-amp verify train.py`" in said
    elsewhere = steps_of(dataclasses.replace(GAINS, profile="h100"))
    there = "Measure its speed on such a device: "
    assert there in elsewhere and there not in said
    assert "`tf-amp audit --device-profile cpu-amx-bf16 train.py`" in said
    model = steps_of(GAINS, source="model", is_model=True)
    assert "`tf-amp bench model --mode infer`" in model
    # Nothing has changed that could be measured.
    assert "bench" not in steps_of(STAYS) and "verify" not in steps_of(STAYS)
    assert "`tf-amp bench train.py`" in steps_of(TRACED, source="train.py")
    assert steps_of(plan_of()) == "Nothing."


PRODUCT = dataclasses.replace(
    row("dense/MatMul", seconds=4e-3, low=6e-3),
    reason=Reason(Cause.COST, "It is on the allow list, since it is a matrix product"),
    is_product=True,
)
# Not a product, so that its time is not counted with theirs.
ADDED = dataclasses.replace(
    row("dense/Add", seconds=1e-3, low=1e-3),
    reason=Reason(Cause.COST, "It is on the clear list, since it is exact"),
)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (
            "cpu-intel-avx512-bf16",
            "On cpu-intel-avx512-bf16, its products take 6 ms in bfloat16 and 4 ms in "
            "float32. See what it gains on a CPU with AMX: `tf-amp audit "
            "--device-profile cpu-amx-bf16 train.py`. That takes names of GPUs, too, "
            "such as h100.",
        ),
        (
            "cpu-amx-bf16",
            "On cpu-amx-bf16, its products take 6 ms in bfloat16 and 4 ms in float32. "
            "Larger batches and wider layers gain more from 16 bits.",
        ),
        (
            "calibrated",
            "On calibrated, its products take 6 ms in bfloat16 and 4 ms in float32. "
            "See what it gains on a CPU with AMX: `tf-amp audit --device-profile "
            "cpu-amx-bf16 train.py`. That takes names of GPUs, too, such as h100.",
        ),
    ],
)
def test_where_products_are_no_faster_the_device_decides_what_to_do(profile, said):
    plan = dataclasses.replace(STAYS, decisions=(PRODUCT, ADDED), profile=profile)
    assert steps_of(plan, source="train.py") == said


def test_what_you_exclude_is_named_with_its_share():
    head = dataclasses.replace(KEPT, reason=Reason(Cause.EXCLUDED, "head"))
    plan = dataclasses.replace(GAINS, decisions=(LOW, head))
    named = "You exclude `head`, which is 50% of the time. Without that it may be in"
    assert named in steps_of(plan)
    small = dataclasses.replace(head, seconds_float32=1e-5)
    assert "exclude" not in steps_of(dataclasses.replace(plan, decisions=(LOW, small)))


def test_a_step_that_starts_or_updates_for_long_asks_for_a_larger_batch():
    update = dataclasses.replace(PRODUCT, reason=Reason(Cause.STATE_UPDATE, "adam"))
    plan = dataclasses.replace(STAYS, decisions=(update, KEPT))
    assert "The updates of variables take 80% of the time" in steps_of(plan)
    started = dataclasses.replace(plan, call_seconds=2e-3)
    assert "Use a larger batch: 40% of the time" in steps_of(started)
    assert "larger batch" not in steps_of(STAYS)


def test_what_keeps_all_in_float32_decides_what_to_do():
    def said_for(cause):
        plan = dataclasses.replace(STAYS, decisions=(kept_for(cause),))
        return steps_of(plan, source="train.py")

    ran = "Nothing: its own steps ran both ways, and float32 stays."
    assert said_for(Cause.TRIAL) == ran
    assert steps_of(GAINS, ratio=0.9, how=STEPS, is_applied=False) == ran
    level = "`TF_AMP_OPT_LEVEL=O1` takes 16 bits where they are faster."
    assert said_for(Cause.LEVEL) == level
    measure = "`TF_AMP_OPT_LEVEL=O2 tf-amp bench train.py`"
    assert measure in said_for(Cause.MARGIN)
    assert said_for(Cause.DENY).endswith(
        "`tf-amp audit --device-profile cpu-amx-bf16 train.py`."
    )
    denied = dataclasses.replace(STAYS, decisions=(kept_for(Cause.DENY),))
    here = dataclasses.replace(denied, profile="calibrated")
    assert steps_of(here, source="train.py").endswith("`tf-amp audit train.py`.")
    bound = dataclasses.replace(STAYS, host_bound="the host is the bound")
    assert steps_of(bound) == "The host is the bound."
    bound = dataclasses.replace(bound, compiled_step="compiled it takes 2 ms")
    assert steps_of(bound) == "The host is the bound; compiled it takes 2 ms."
    denied = dataclasses.replace(denied, compiled_step="compiled it takes 2 ms")
    assert steps_of(denied).startswith("Compiled it takes 2 ms.")
    assert "tf-amp audit" in steps_of(denied)


def test_what_is_known_and_good_needs_no_step():
    fast = dataclasses.replace(GAINS, decisions=(LOW,))
    said = steps_of(fast, ratio=2.0, how=STEPS, holds=True)
    assert said == "Nothing: it is measured, and its numbers hold."


def test_what_is_wrong_has_a_remedy():
    assert "verify SCRIPT --bisect" in steps_of(GAINS, holds=False)
    slow = dataclasses.replace(GAINS, seconds_after=9e-3, opt_level="O2")
    assert "`TF_AMP_OPT_LEVEL=O1`" in steps_of(slow)
    assert "`TF_AMP_OPT_LEVEL=O1`" not in steps_of(GAINS)
    assert "`tf-amp calibrate`" in steps_of(GAINS, ratio=0.8, how=STEPS)
    guessed = dataclasses.replace(GAINS, guessed="Sizes count as 32.")
    assert "Sizes count as 32." in steps_of(guessed)
