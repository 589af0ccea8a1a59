"""Where memory is saved, bytes that a step holds have a price in seconds."""

from __future__ import annotations

import random

import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import optimize
from grappler_pass.planning.cut import Problem, minimum_cut
from grappler_pass.planning.memory_price import SHARE, lightest, weighted
from grappler_pass.planning.plan import Cause, Plan
from tests.grappler_pass.planning.test_assignment import random_problem
from tests.rewriters import settings_of
from tests.sketch import sketch


@pytest.mark.parametrize("seed", range(20))
def test_more_weight_holds_no_more_and_takes_no_less(seed: int) -> None:
    seconds = random_problem(seed)
    draw = random.Random(seed)
    sizes = [draw.random() for _ in seconds.low_seconds]
    held = Problem(sizes, [0.0] * len(sizes), [])
    cuts = [minimum_cut(weighted(seconds, held, weight)) for weight in (0.0, 1.0, 9.0)]
    for measure, order in ((held, -1), (seconds, 1)):
        figures = [round(order * measure.seconds(low), 6) for low in cuts]
        assert figures == sorted(figures)


def test_the_search_ends_within_the_seconds_that_it_may_take() -> None:
    weights = list[float]()

    def at(weight: float) -> float:
        weights.append(weight)
        return weight

    found = lightest(at, lambda seconds: seconds, 10.0, 1.0)
    assert found is not None and 5.0 < found <= 10.0
    assert len(weights) == 5
    assert lightest(at, lambda seconds: seconds, 0.0, 1.0) is None


def network() -> GraphDef:
    """Return a step of layers with GELU, which is slower in 16 bits."""
    with sketch() as made:
        h = made.feed(4096, 512)
        for layer in range(4):
            product = h @ made.weight(512, 512, name=f"w{layer}")
            h = tf.nn.gelu(product, approximate=True)
        loss = tf.reduce_mean(tf.square(h), name="loss")
        gradients = tf.gradients(loss, tf.compat.v1.global_variables())
        tf.group(*gradients, name="updates")
        return made.graph.as_graph_def()


def plan_of(graph: GraphDef, *, saves_memory: bool) -> Plan:
    models = {"CPU": CostModel(DeviceProfile.load("cpu-amx-bf16"))}
    settings = settings_of("bfloat16", "O1", models=models, saves_memory=saves_memory)
    item = Item(fetch=("loss", "updates"))
    shapes = shapes_from_graph_def(graph)
    plan = optimize(graph, item, settings, shapes=lambda: shapes).plan
    assert plan is not None
    return plan


def test_a_step_holds_less_and_takes_a_little_longer() -> None:
    graph = network()
    fast, light = (plan_of(graph, saves_memory=each) for each in (False, True))
    assert light.peak_bytes_after < 0.95 * fast.peak_bytes_after
    assert fast.seconds_after < light.seconds_after
    assert light.seconds_after < (1.0 + SHARE) * fast.seconds_after
    causes = {row.reason.cause for row in light.decisions}
    assert Cause.MEMORY in causes
