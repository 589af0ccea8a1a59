"""What is known or found out of a rewritten graph decides whether it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, Price
from grappler_pass.costs.model import Expected
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite, optimize, plan_graph
from grappler_pass.planning.draft import Draft, Outcome, Settings, Trial
from grappler_pass.planning.plan import Cause
from tf_amp.tracing.grappler_preview import (
    graph_with_variables,
    kept_nodes,
    optimized_graph,
)

_ALLOW = OpLists.for_dtype("bfloat16").list_of


@dataclasses.dataclass(frozen=True)
class Step:
    """A function's graph with what the pass is told of it."""

    graph_def: tf.compat.v1.GraphDef
    item: Item
    shapes: Shapes


@dataclasses.dataclass(frozen=True)
class BelievedPrices:
    """A device on which products take a tenth of the time in 16 bits, or as long."""

    low_share: float = 0.1
    error: float = 0.7
    profile: DeviceProfile = dataclasses.field(
        default_factory=lambda: DeviceProfile.load("cpu-generic")
    )

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds of float32, or the share of them that is believed in."""
        seconds = CostModel(self.profile).price(call, "float32").seconds
        is_low = dtype != "float32" and _ALLOW(call.op) == "allow"
        return Price(
            seconds * (self.low_share if is_low else 1.0), "profile", self.error
        )

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return next to nothing."""
        return Price(1e-9, "profile", self.error)

    def expected(self, call: OpCall, dtype: str) -> Expected:
        """Return the same seconds, of one cell for each op."""
        return Expected(f"{call.op} {dtype}", self.price(call, dtype).seconds)


@dataclasses.dataclass
class Steps:
    """Steps and memory that know what they are told, and remember what they hear."""

    answer: Outcome
    asked: list[Trial] = dataclasses.field(default_factory=list)
    kept: list[Draft] = dataclasses.field(default_factory=list)

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Answer, and keep who is to be told later."""
        self.asked.append(trial)
        self.decided = decided
        return self.answer

    def recall(self, draft: Draft) -> None:
        """Know no graph."""

    def keep(self, draft: Draft) -> None:
        """Remember how a graph came out."""
        self.kept.append(draft)


def _step_of(function: Callable[[], tf.Tensor]) -> Step:
    concrete = tf.function(function).get_concrete_function()
    kept = kept_nodes(concrete.graph)
    graph_def = optimized_graph(graph_with_variables(concrete.graph), kept)
    return Step(graph_def, Item(fetch=kept), shapes_from_graph_def(graph_def))


def _convolution_step() -> Step:
    """Return gradients of a depthwise convolution, in bfloat16 many times slower."""
    images = tf.Variable(tf.ones([8, 32, 32, 64]))
    weight = tf.Variable(tf.ones([5, 5, 64, 1]))

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            inputs = tf.nn.relu(images)
            tape.watch(inputs)
            outputs = tf.nn.depthwise_conv2d(inputs, weight, [1, 2, 2, 1], "SAME")
            loss = tf.reduce_sum(outputs * outputs)
        to_weight, to_inputs = tape.gradient(loss, [weight, inputs])
        weight.assign_sub(to_weight * 1e-3)
        return tf.reduce_sum(to_inputs)

    return _step_of(step)


def _settings(
    own_steps: Steps | None, prices: BelievedPrices | None = None, level: str = "O1"
) -> Settings:
    models = {"CPU": prices or BelievedPrices()}
    lists = OpLists.for_dtype("bfloat16")
    return Settings(
        "bfloat16",
        lists,
        models,
        opt_level=level,
        own_steps=own_steps,
        memory=own_steps,
        home=Home("CPU"),
    )


def _causes(rewrite: Rewrite) -> set[Cause]:
    assert rewrite.plan is not None
    return {decision.reason.cause for decision in rewrite.plan.decisions}


def _rewritten(step: Step, settings: Settings) -> Rewrite:
    return optimize(
        step.graph_def, step.item, settings, shapes=lambda: step.shapes, name="step"
    )


@pytest.mark.parametrize("error", [0.7, 0.01])
def test_a_plan_known_to_be_slower_is_withdrawn_however_sure(error: float) -> None:
    step = _convolution_step()
    assert _rewritten(step, _settings(None)).changed
    prices = BelievedPrices(error=error)
    rewrite = _rewritten(step, _settings(Steps(Outcome.SLOWER), prices))
    assert rewrite.graph_def is step.graph_def
    assert rewrite.plan is not None and rewrite.plan.is_empty
    assert rewrite.plan.casts == 0
    assert rewrite.plan.seconds_after == rewrite.plan.seconds_before
    assert rewrite.plan.filter(reason=Cause.TRIAL).decisions


@pytest.mark.parametrize("low_share", [0.1, 0.9])
def test_a_plan_known_to_be_faster_is_kept(low_share: float) -> None:
    settings = _settings(Steps(Outcome.FASTER), BelievedPrices(low_share))
    assert _rewritten(_convolution_step(), settings).changed


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Outcome.UNKNOWN, Cause.MARGIN),
        (Outcome.KERNEL_STATE, Cause.KERNEL_STATE),
    ],
)
def test_where_nothing_is_known_an_uncertain_gain_is_not_applied(
    answer: Outcome, cause: Cause
) -> None:
    step, steps = _convolution_step(), Steps(answer)
    assert _rewritten(step, _settings(steps)).changed
    uncertain = _rewritten(step, _settings(steps, BelievedPrices(0.9)))
    assert _causes(uncertain) >= {cause}
    assert not uncertain.changed and len(steps.asked) == 2


@pytest.mark.parametrize(
    ("low_share", "error", "device", "is_certain"),
    [
        (0.1, 0.01, "this CPU", True),
        (0.1, 0.01, None, False),
        (0.1, 0.7, "this CPU", False),
        # As of what is far smaller than anything measured.
        (0.001, 0.4, "this CPU", False),
        (0.99, 0.01, "this CPU", False),
    ],
)
def test_certain_is_a_gain_beyond_the_error_of_prices_found_on_this_device(
    low_share: float, error: float, device: str | None, is_certain: bool
) -> None:
    steps = Steps(Outcome.FASTER)
    profile = dataclasses.replace(DeviceProfile.load("cpu-generic"), device=device)
    prices = BelievedPrices(low_share, error, profile)
    _rewritten(_convolution_step(), _settings(steps, prices))
    assert [trial.is_certain for trial in steps.asked] in ([is_certain], [])


@pytest.mark.parametrize("is_faster", [True, False])
def test_what_is_open_is_run_and_remembered_once_it_is_decided(is_faster: bool) -> None:
    steps = Steps(Outcome.OPEN)
    assert _rewritten(_convolution_step(), _settings(steps)).changed
    steps.decided(is_faster)
    before, after = steps.kept
    assert before.is_open and any(before.low)
    assert any(after.low) is is_faster


def test_what_can_gain_nothing_is_not_tried() -> None:
    steps = Steps(Outcome.OPEN)
    _rewritten(_convolution_step(), _settings(steps, BelievedPrices(0.999, 1e-3)))
    assert steps.asked == []


def test_the_plan_that_is_explained_is_the_one_that_is_run() -> None:
    step, steps = _convolution_step(), Steps(Outcome.SLOWER)
    plan = plan_graph(
        step.graph_def, step.item, _settings(steps), shapes=lambda: step.shapes
    )
    assert plan.is_empty and len(steps.asked) == 1


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_only_the_level_that_asks_for_gain_tries(level: str) -> None:
    steps = Steps(Outcome.SLOWER)
    _rewritten(_convolution_step(), _settings(steps, level=level))
    assert steps.asked == []
