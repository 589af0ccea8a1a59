"""A graph that stays float32 is planned once, though Grappler brings it twice."""

from __future__ import annotations

import gc
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

import tf_amp
from grappler_pass import pipeline
from tf_amp.rewriting import arriving_graphs

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the graphs that are planned from now on."""
    names: list[str] = []
    optimize = pipeline.optimize

    def noting(*args: object, name: str, **kwargs: object) -> pipeline.Rewrite:
        names.append(name)
        return optimize(*args, name=name, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "optimize", noting)
    return names


def test_each_float32_graph_is_planned_once(
    planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: list[bytes] = []
    original = arriving_graphs.rewrite_graph

    def noting(data: bytes, item: object) -> bytes | None:
        if b"MatMul" in data:
            visits.append(data)
        return original(data, item)  # type: ignore[arg-type]

    monkeypatch.setattr(arriving_graphs, "rewrite_graph", noting)
    tf_amp.enable(dtype="bfloat16", tune="off")

    @tf.function(reduce_retracing=False)
    def small(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ x)

    for size in (3, 4, 5):
        small(tf.ones([size, size]))

    assert planned == ["small"] * 3
    assert len(visits) == 6


def test_a_float32_graph_whose_scalars_are_shared_is_planned_once_too(
    planned: list[str],
) -> None:
    tf_amp.enable(dtype="bfloat16", tune="off", device_profile="cpu-generic")
    weights = [keras.Variable(np.ones((4, 3), "float32")) for _ in range(4)]
    optimizer = keras.optimizers.Adamax()
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        product = x @ weights[0].value
        optimizer.apply_gradients([(tf.exp(product), each) for each in weights])
        return product

    step(tf.ones([4, 4]))
    assert planned == ["step"]
    plan = tf_amp.explain(step, tf.ones([4, 4]))
    assert {each.rule for each in plan.traced_fusions} == {"shared_scalars"}


@pytest.mark.parametrize("compiled", [False, True])
def test_no_garbage_is_looked_for_meanwhile(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting = []
    original = arriving_graphs.rewritten_by_stamps

    def noting(given: arriving_graphs.Given) -> object:
        collecting.append(gc.isenabled())
        return original(given)

    monkeypatch.setattr(arriving_graphs, "rewritten_by_stamps", noting)
    tf_amp.enable(dtype="bfloat16", tune="off")
    tf.function(lambda x: x @ x, jit_compile=compiled)(tf.ones([3, 3]))
    assert collecting
    assert not any(collecting)
    assert gc.isenabled()


def graph_of(name: str = "product", stamp: bytes = b"a:step:1") -> GraphDef:
    graph_def = GraphDef()
    node = graph_def.node.add(name=name, op="MatMul")
    node.attr["_tf_amp"].s = stamp
    return graph_def


def test_only_the_next_visit_of_the_same_graph_is_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[object] = []
    monkeypatch.setattr(arriving_graphs, "rewritten_by_stamps", planned.append)
    item = types.SimpleNamespace(fetch=("fetch",), preserve=())
    graph, traced_anew, another = graph_of(), graph_of(stamp=b"2"), graph_of("another")
    for each in (graph, graph, graph, traced_anew, another, graph, graph):
        arriving_graphs.rewrite_graph(each.SerializeToString(), item)
    visited = [given.graph_def for given in planned]
    assert visited == [graph, graph, traced_anew, another, graph]
    keys = {arriving_graphs.key_of_visit(graph, (), label) for label in ("", "16 bits")}
    assert len(keys) == 2
