"""What is known or found out of a rewritten graph decides whether it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, Price
from grappler_pass.costs.model import Expected
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite, draft_graph, optimize
from grappler_pass.planning.draft import Draft, Outcome, Settings, Trial
from grappler_pass.planning.plan import Cause
from tf_amp.tracing.grappler_preview import (
    graph_with_variables,
    kept_nodes,
    optimized_graph,
)

Graph = tuple[GraphDef, Item, Callable[[], Shapes]]
_ALLOW = OpLists.for_dtype("bfloat16").list_of


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


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Gradients of a depthwise convolution, in bfloat16 many times slower."""
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

    traced = tf.function(step).get_concrete_function().graph
    kept = kept_nodes(traced)
    graph_def = optimized_graph(graph_with_variables(traced), kept)
    shapes = shapes_from_graph_def(graph_def)
    # What the pass is told of it.
    return graph_def, Item(fetch=kept), lambda: shapes


def settings(
    own_steps: Steps | None, prices: BelievedPrices | None = None, level: str = "O1"
) -> Settings:
    return Settings(
        "bfloat16",
        OpLists.for_dtype("bfloat16"),
        {"CPU": prices or BelievedPrices()},
        opt_level=level,
        own_steps=own_steps,
        memory=own_steps,
        home=Home("CPU"),
    )


def rewritten(graph: Graph, *given: object, **named: object) -> Rewrite:
    graph_def, item, shapes = graph
    return optimize(graph_def, item, settings(*given, **named), shapes=shapes)


@pytest.mark.parametrize("error", [0.7, 0.01])
def test_a_plan_known_to_be_slower_is_withdrawn_however_sure(
    graph: Graph, error: float
) -> None:
    assert rewritten(graph, None).changed
    prices = BelievedPrices(error=error)
    rewrite = rewritten(graph, Steps(Outcome.SLOWER), prices)
    assert rewrite.graph_def is graph[0]
    assert rewrite.plan is not None and rewrite.plan.is_empty
    assert rewrite.plan.casts == 0
    assert rewrite.plan.seconds_after == rewrite.plan.seconds_before
    assert rewrite.plan.filter(reason=Cause.TRIAL).decisions


@pytest.mark.parametrize("low_share", [0.1, 0.9])
def test_a_plan_known_to_be_faster_is_kept(graph: Graph, low_share: float) -> None:
    prices = BelievedPrices(low_share)
    assert rewritten(graph, Steps(Outcome.FASTER), prices).changed


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Outcome.UNKNOWN, Cause.MARGIN),
        (Outcome.KERNEL_STATE, Cause.KERNEL_STATE),
    ],
)
def test_where_nothing_is_known_an_uncertain_gain_is_not_applied(
    graph: Graph, answer: Outcome, cause: Cause
) -> None:
    steps = Steps(answer)
    assert rewritten(graph, steps).changed
    uncertain = rewritten(graph, steps, BelievedPrices(0.9))
    assert uncertain.plan is not None and uncertain.plan.filter(reason=cause).decisions
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
    graph: Graph, low_share: float, error: float, device: str | None, is_certain: bool
) -> None:
    steps = Steps(Outcome.FASTER)
    profile = dataclasses.replace(DeviceProfile.load("cpu-generic"), device=device)
    rewritten(graph, steps, BelievedPrices(low_share, error, profile))
    assert [trial.is_certain for trial in steps.asked] in ([is_certain], [])


@pytest.mark.parametrize("is_faster", [True, False])
def test_what_is_open_is_run_and_remembered_once_it_is_decided(
    graph: Graph, is_faster: bool
) -> None:
    steps = Steps(Outcome.OPEN)
    assert rewritten(graph, steps).changed
    steps.decided(is_faster)
    before, after = steps.kept
    assert before.is_open and any(before.low)
    assert any(after.low) is is_faster


@pytest.mark.parametrize(
    ("prices", "level"),
    [
        # What can gain nothing.
        (BelievedPrices(0.999, 1e-3), "O1"),
        # Levels that do not ask for a gain.
        *((None, level) for level in ("O0", "O2", "O3")),
    ],
)
def test_only_what_may_gain_is_tried_where_that_is_asked_for(
    graph: Graph, prices: BelievedPrices | None, level: str
) -> None:
    steps = Steps(Outcome.SLOWER)
    rewritten(graph, steps, prices, level=level)
    assert steps.asked == []


def test_the_plan_that_is_explained_is_the_one_that_is_run(graph: Graph) -> None:
    steps = Steps(Outcome.SLOWER)
    graph_def, item, shapes = graph
    draft = draft_graph(graph_def, item, settings(steps), shapes=shapes)
    assert draft.plan.is_empty
    assert len(steps.asked) == 1
