"""Fetches of a GraphDef, given in one way to all that takes one."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp

FORMS = {
    "names": (("left", "right"), {}),
    "ports": (("left:0", "^right"), {}),
    "list": ((["left", "right"],), {}),
    "tuple": ((("left", "right"),), {}),
    "keyword": ((), {"fetches": ["left", "right"]}),
}
WRONG = {
    "nothing": ((), {}),
    "empty": (([],), {}),
    "lists": ((["left"], ["right"]), {}),
    "twice": (("left",), {"fetches": ["right"]}),
    "number": ((3,), {}),
    "unknown": (("left", "rigth"), {}),
}


def graph_def():
    """Two products whose values two other nodes go on with."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (512, 512), name="x")
        for name in ("left", "right"):
            tf.nn.relu(tf.matmul(x, x, name=name), name=f"after_{name}")
    return graph.as_graph_def()


def explained(*args, **kwargs):
    return tf_amp.explain(graph_def(), *args, **kwargs)


def audited(*args, **kwargs):
    return tf_amp.audit(graph_def(), *args, device_profile="v100", **kwargs).plan


@pytest.mark.parametrize("plan_of", [explained, audited])
@pytest.mark.parametrize("form", FORMS)
def test_a_plan_keeps_every_fetch(plan_of, form):
    args, kwargs = FORMS[form]
    plan = plan_of(*args, **kwargs)
    kept = plan.filter(reason="preserved").decisions
    assert {row.slot.node for row in kept} == {"left", "right"}


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_is_optimized_and_verified_for_every_fetch(form):
    args, kwargs = FORMS[form]
    x = np.zeros((512, 512), np.float32)
    verified = tf_amp.verify(graph_def(), *args, x=x, opt_level="O2", **kwargs)
    assert {check.name for check in verified.checks} == {"left", "right"}
    mixed = tf_amp.optimize(graph_def(), *args, opt_level="O2", **kwargs)
    assert {"left", "right"} <= {node.name for node in mixed.node}


@pytest.mark.parametrize("plan_of", [explained, audited])
@pytest.mark.parametrize("form", WRONG)
def test_what_names_no_nodes_is_refused(plan_of, form):
    args, kwargs = WRONG[form]
    with pytest.raises(ValueError, match="name the nodes whose outputs are read"):
        plan_of(*args, **kwargs)
