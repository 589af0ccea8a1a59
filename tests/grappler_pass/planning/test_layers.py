"""Operations belong to the layer whose name scope they are in, gradients too."""

from __future__ import annotations

import tensorflow as tf

import tf_amp
from grappler_pass.eligibility.exclusions import finder
from grappler_pass.graph.type_slots import TypeSlot
from grappler_pass.planning.plan import Cause, Decision, Plan, Reason, planned_nodes


def row(name, *, seconds=1.0, low=None, cast=0.0, slot="T", is_low=False):
    cause = Cause.GAIN if is_low else Cause.COST
    dtype = "bfloat16" if is_low else "float32"
    return Decision(
        TypeSlot(name, slot, 0), "MatMul", dtype, Reason(cause), seconds, low, cast
    )


def plan_of(*rows):
    return Plan(rows, "bfloat16")


def test_gradients_count_for_the_layer_of_what_they_are_gradients_of():
    call = "StatefulPartitionedCall/"
    plan = plan_of(
        row(f"{call}model/dense/BiasAdd"),
        # The product itself was fused into the sum, and its name is gone.
        row(f"{call}gradient_tape/model/dense/MatMul/MatMul_1", seconds=2.0),
        row("PartitionedCall_1/gradients_2/head/MatMul_grad/MatMul_1", seconds=16.0),
        row("gradients/head/MatMul_grad/MatMul", seconds=4.0),
        row("head/MatMul", seconds=8.0),
        row("loss", seconds=0.5),
    )
    times = {layer.name: layer.seconds_float32 for layer in plan.by_layer()}
    assert times == {"head": 28.0, "model/dense": 3.0, "": 0.5}


def test_a_node_takes_what_its_plan_says_with_the_casts_before_it():
    plan = plan_of(
        row("a/MatMul", seconds=4.0, low=1.0, cast=0.5, is_low=True),
        row("a/MatMul", seconds=0.0, slot="U"),
        row("a/Add", seconds=2.0, low=3.0),
    )
    (layer,) = plan.by_layer()
    assert (layer.nodes, layer.low_nodes) == (2, 1)
    assert (layer.seconds_float32, layer.seconds, layer.low_seconds) == (6.0, 3.5, 1.5)


def test_names_are_put_together_again_and_their_patterns_find_them(disabled_afterwards):
    @tf.function
    def step(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            with tf.name_scope("body"), tf.name_scope("dense"):
                loss = tf.reduce_sum(tf.nn.relu(x @ w))
        return tape.gradient(loss, w)

    tf_amp.enable(device_profile="cpu-avx512-bf16")
    spec = tf.TensorSpec((512, 512))
    plan = tf_amp.explain(step, spec, spec)
    nodes = planned_nodes(plan.decisions)
    assert {node.name for node in nodes} == {row.slot.node for row in plan.decisions}
    gradients = [node for node in nodes if "gradient" in node.prefix]
    assert gradients and {node.layer[:1] for node in gradients} == {("body",)}
    find = finder([r"^body/dense/"])
    assert all(find(node.name) for node in nodes if node.layer == ("body", "dense"))
