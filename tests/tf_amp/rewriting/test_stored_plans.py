"""Plans that were stored are carried out again, whatever prices say meanwhile."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import optimize
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.plan import Cause, Plan
from tests.text_graph import graph_from_text
from tf_amp.rewriting.host import Memory, PlanRecord

# Two branches that compute the same from the same.
STEP = """
  x = Placeholder shape=[1024,1024]
  w_9 = Placeholder shape=[1024,1024]
  w_10 = Placeholder shape=[1024,1024]
  big_9 = MatMul(x, w_9)
  big_10 = MatMul(x, w_10)
  act_9 = Relu(big_9)
  act_10 = Relu(big_10)
  out_9 = MatMul(act_9, w_9)
  out_10 = MatMul(act_10, w_10)
  fetch = AddV2(out_9, out_10)
"""
# The same graph under names that another trace has given.
RENAMED = STEP.replace("_9", "_98").replace("_10", "_123")

PRICED = {Cause.GAIN, Cause.NEIGHBORS}


def settings(memory: Memory | None, profile: str = "cpu-avx512-bf16") -> Settings:
    return Settings(
        "bfloat16",
        OpLists.for_dtype("bfloat16"),
        {"CPU": CostModel(DeviceProfile.load(profile))},
        memory=memory,
        home=Home("CPU"),
    )


def plan_of(text: str, chosen: Settings) -> Plan:
    graph_def = graph_from_text(text)
    shapes = functools.partial(shapes_from_graph_def, graph_def)
    item = Item(fetch=("fetch",), feed=("x",))
    plan = optimize(graph_def, item, chosen, shapes=shapes, name="step").plan
    assert plan is not None
    return plan


def low_nodes(plan: Plan) -> list[str]:
    return [row.slot.node for row in plan.decisions if row.is_low]


def resumed(memory: Memory) -> Memory:
    """Return what another process knows once it has restored."""
    other = Memory()
    other.resume(memory.known())
    return other


def test_a_stored_plan_goes_before_other_prices() -> None:
    memory = Memory()
    before = plan_of(STEP, settings(memory))
    assert low_nodes(before)
    assert not low_nodes(plan_of(STEP, settings(None, "cpu-generic")))
    after = plan_of(STEP, settings(resumed(memory), "cpu-generic"))
    assert low_nodes(after) == low_nodes(before)
    causes = {row.reason.cause for row in after.decisions if row.is_low}
    assert causes == {Cause.RESUMED_LOW}
    assert "as in the run that is resumed" in str(after)


def test_a_stored_plan_without_a_gain_stays_so() -> None:
    memory = Memory()
    assert not low_nodes(plan_of(STEP, settings(memory, "cpu-generic")))
    after = plan_of(STEP, settings(resumed(memory)))
    assert not low_nodes(after)
    assert after.filter(reason=Cause.RESUMED).decisions


def test_a_graph_is_known_again_under_other_names_and_its_branches_apart() -> None:
    memory = Memory()
    count = len(low_nodes(plan_of(STEP, settings(memory))))
    after = plan_of(RENAMED, settings(resumed(memory), "cpu-generic"))
    assert len(low_nodes(after)) == count
    # Each of two equal branches has a plan of its own.
    excluded = dataclasses.replace(settings(memory), exclude=("_10$",))
    before = low_nodes(plan_of(STEP, excluded))
    assert before and all(name.endswith("_9") for name in before)
    after = low_nodes(plan_of(RENAMED, settings(resumed(memory))))
    assert after and all(name.endswith("_98") for name in after)


@pytest.mark.parametrize(
    ("stored", "exclude", "told"),
    [
        (STEP.replace("1024,1024", "512,512"), (), "is not among the plans resumed"),
        (STEP, ("big_9",), "does not fit"),
    ],
    ids=["another graph", "does not fit"],
)
def test_what_is_not_stored_or_does_not_fit_is_planned_by_its_prices(
    stored: str, exclude: tuple[str, ...], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="absl")
    memory = Memory()
    plan_of(stored, settings(memory, "cpu-avx512-bf16" if exclude else "cpu-generic"))
    chosen = dataclasses.replace(settings(resumed(memory)), exclude=exclude)
    after = plan_of(STEP, chosen)
    assert told in caplog.text
    low = {row.slot.node: row.reason.cause for row in after.decisions if row.is_low}
    assert low and {*low.values()} <= PRICED and not {*exclude} & {*low}


def test_a_plan_of_other_length_is_made_anew() -> None:
    memory = Memory()
    expected = low_nodes(plan_of(STEP, settings(memory)))
    other = Memory()
    other.resume({key: PlanRecord("step", "1", 1) for key in memory.known()})
    assert low_nodes(plan_of(STEP, settings(other))) == expected


def test_levels_that_ask_no_prices_store_nothing() -> None:
    memory = Memory()
    plan_of(STEP, dataclasses.replace(settings(memory), opt_level="O2"))
    assert memory.known() == {}


def test_only_so_many_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tf_amp.rewriting.host._RECORDS_KEPT", 2)
    memory = Memory()
    for size in (256, 512, 1024):
        text = STEP.replace("1024,1024", f"{size},{size}")
        plan_of(text, settings(memory, "cpu-generic"))
    assert len(memory.known()) == 2
