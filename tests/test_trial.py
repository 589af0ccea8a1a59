"""The faster of two graphs is kept, whatever the prices say."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, Price
from grappler_pass.costs.database import CostDatabase
from grappler_pass.draft import Settings, Trial
from grappler_pass.graph import Item
from grappler_pass.op_lists import OpLists
from grappler_pass.pipeline import Rewrite, optimize, plan_graph
from grappler_pass.plan import Cause
from grappler_pass.shapes import Shapes, shapes_from_graph_def
from tf_amp.devices import cpu_flags
from tf_amp.function_graphs import graph_with_variables, kept_nodes, optimized_graph
from tf_amp.tuning import verdicts
from tf_amp.tuning.budget import Budget, Limits
from tf_amp.tuning.known_costs import KnownCosts

_ALLOW = OpLists.for_dtype("bfloat16").list_of


_WITH_16_BIT_UNITS = pytest.mark.skipif(
    not cpu_flags() & {"avx512_bf16", "amx_bf16"}, reason="no 16-bit units"
)


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

    def price(self, call: OpCall, dtype: str, probe: object = None) -> Price:
        """Return seconds of float32, or the share of them that is believed in."""
        seconds = CostModel(self.profile).price(call, "float32").seconds
        is_low = dtype != "float32" and _ALLOW(call.op) == "allow"
        return Price(
            seconds * (self.low_share if is_low else 1.0), "profile", self.error
        )

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return next to nothing."""
        return Price(1e-9, "profile", self.error)


@dataclasses.dataclass
class Trier:
    """A tuner that tries graphs, and remembers what it was asked."""

    costs: KnownCosts
    seconds: float = 8.0
    asked: list[Trial] = dataclasses.field(default_factory=list)
    answers: list[bool | None] = dataclasses.field(default_factory=list)

    def measure(self, stakes: object, low_dtype: str) -> bool:
        """Measure nothing: prices stay as believed."""
        return False

    def is_faster(self, trial: Trial) -> bool | None:
        """Run both graphs."""
        allowance = Budget(Limits(self.seconds)).allowance(len(self.asked))
        self.asked.append(trial)
        self.answers.append(verdicts.is_faster(trial, self.costs, allowance))
        return self.answers[-1]


@pytest.fixture(autouse=True)
def _nothing_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_found", {})
    monkeypatch.setattr(verdicts, "_rejected", set())


def _trier(path: pathlib.Path | None = None) -> Trier:
    database = None if path is None else CostDatabase(path)
    return Trier(KnownCosts("CPU", "this cpu", tf.__version__, database=database))


def _step_of(function: Callable[[], tf.Tensor]) -> Step:
    concrete = tf.function(function).get_concrete_function()
    kept = kept_nodes(concrete)
    graph_def = optimized_graph(graph_with_variables(concrete), kept)
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


def _product_step() -> Step:
    """Return a chain of large products, in bfloat16 units nearly twice as fast."""
    weights = [tf.Variable(tf.ones([1024, 1024])) for _ in range(4)]

    def step() -> tf.Tensor:
        value = tf.ones([1024, 1024]) * weights[0][0, 0]
        for weight in weights:
            value = value @ weight
        return tf.reduce_sum(value)

    return _step_of(step)


def _settings(
    tuner: Trier | None, prices: BelievedPrices | None = None, level: str = "O1"
) -> Settings:
    models = {"CPU": prices or BelievedPrices()}
    lists = OpLists.for_dtype("bfloat16")
    return Settings("bfloat16", lists, models, opt_level=level, tuner=tuner)


def _causes(rewrite: Rewrite) -> set[Cause]:
    assert rewrite.plan is not None
    return {decision.reason.cause for decision in rewrite.plan.decisions}


def _rewritten(step: Step, settings: Settings) -> Rewrite:
    return optimize(
        step.graph_def, step.item, settings, shapes=lambda: step.shapes, name="step"
    )


@pytest.mark.parametrize("error", [0.7, 0.01])
def test_a_plan_made_of_false_prices_is_withdrawn_however_sure(error: float) -> None:
    step, trier = _convolution_step(), _trier()
    assert _rewritten(step, _settings(None)).changed
    prices = BelievedPrices(error=error)
    rewrite = _rewritten(step, _settings(trier, prices))
    assert trier.answers == [False]
    assert rewrite.graph_def is step.graph_def
    assert rewrite.plan is not None and rewrite.plan.is_empty
    assert rewrite.plan.casts == 0
    assert rewrite.plan.seconds_after == rewrite.plan.seconds_before
    assert rewrite.plan.filter(reason=Cause.TRIAL).decisions


@_WITH_16_BIT_UNITS
def test_a_plan_that_pays_is_kept() -> None:
    trier = _trier()
    rewrite = _rewritten(_product_step(), _settings(trier, BelievedPrices(0.5, 0.4)))
    assert trier.answers == [True]
    assert rewrite.changed


def test_an_uncertain_gain_is_tried_where_a_trial_can_tell() -> None:
    step, trier = _convolution_step(), _trier()
    uncertain = BelievedPrices(low_share=0.9)
    untried = _rewritten(step, _settings(None, uncertain))
    assert _causes(untried) >= {Cause.MARGIN}
    tried = _rewritten(step, _settings(trier, uncertain))
    assert trier.answers == [False] and not trier.asked[0].is_sure
    assert _causes(tried) >= {Cause.TRIAL}
    # Nor is it applied where there is no time to find out.
    verdicts._found.clear()
    verdicts._rejected.clear()
    trier = dataclasses.replace(_trier(), seconds=0.0)
    without_time = _rewritten(step, _settings(trier, uncertain))
    assert trier.answers == [None] and not without_time.changed
    assert _causes(without_time) >= {Cause.MARGIN}


def test_what_can_gain_nothing_is_not_tried() -> None:
    trier = _trier()
    _rewritten(_convolution_step(), _settings(trier, BelievedPrices(0.999, 1e-3)))
    assert trier.asked == []


@_WITH_16_BIT_UNITS
def test_an_uncertain_plan_that_pays_is_kept() -> None:
    uncertain, trier = BelievedPrices(low_share=0.9), _trier()
    assert not _rewritten(_product_step(), _settings(None, uncertain)).changed
    assert _rewritten(_product_step(), _settings(trier, uncertain)).changed
    assert trier.answers == [True]


def test_the_plan_that_is_explained_is_the_one_that_is_run() -> None:
    step, trier = _convolution_step(), _trier()
    settings = Settings(
        "bfloat16",
        OpLists.for_dtype("bfloat16"),
        {"CPU": BelievedPrices()},
        tuner=trier,
    )
    plan = plan_graph(step.graph_def, step.item, settings, shapes=lambda: step.shapes)
    assert plan.is_empty
    assert trier.answers == [False]


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_only_the_level_that_asks_for_gain_tries(level: str) -> None:
    trier = _trier()
    _rewritten(_convolution_step(), _settings(trier, level=level))
    assert trier.asked == []


def test_a_verdict_outlives_the_process(tmp_path: pathlib.Path) -> None:
    step, path = _convolution_step(), tmp_path / "costs.sqlite3"
    first = _trier(path)
    _rewritten(step, _settings(first))
    verdicts._found.clear()
    verdicts._rejected.clear()
    # No time for another trial: the answer can only come from the file.
    second = dataclasses.replace(_trier(path), seconds=0.0)
    assert not _rewritten(step, _settings(second)).changed
    assert first.answers == second.answers == [False]


def test_without_time_the_prices_are_trusted() -> None:
    trier = dataclasses.replace(_trier(), seconds=0.0)
    assert _rewritten(_convolution_step(), _settings(trier)).changed
    assert trier.answers == [None]


def test_a_rejected_graph_is_not_tried_again_when_grappler_returns() -> None:
    step, trier = _convolution_step(), _trier()
    _rewritten(step, _settings(trier))
    altered = tf.compat.v1.GraphDef.FromString(step.graph_def.SerializeToString())
    altered.node.add(name="left/over", op="NoOp")
    trier.seconds = 0.0
    again = dataclasses.replace(step, graph_def=altered)
    assert not _rewritten(again, _settings(trier)).changed
    assert trier.answers == [False, False]
