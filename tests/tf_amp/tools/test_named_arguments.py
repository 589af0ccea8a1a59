"""A name that neither a task nor its function knows is refused, not handed on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tf_amp.errors import ConfigError
from tf_amp.run.batches import arguments_by_placeholder
from tf_amp.tools.explanation import check_named

SPEC = tf.TensorSpec((8, 8))
LISTS = {"add": {"deny": ["MatMul"]}}
TASKS = {
    "explain": tf_amp.explain,
    "verify": tf_amp.verify,
    "optimize": tf_amp.optimize,
    "audit": lambda *args, **kwargs: tf_amp.audit(
        *args, device_profile="v100", **kwargs
    ),
}


def product(x, y=None):
    return x @ (x if y is None else y)


def product_of_any(x, **options):
    return x @ options.get("y", x)


def product_by_lists(x, lists=None):
    return x @ x if lists else x


def graph_def():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (8, 8), name="x")
        tf.matmul(x, x, name="product")
    return graph.as_graph_def()


def model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])


CALLED = {
    "function": lambda: (product, SPEC),
    "tf.function": lambda: (tf.function(product), SPEC),
    "any": lambda: (product_of_any, SPEC),
    "model": lambda: (model(), SPEC),
    "traced model": lambda: (tf.function(model()), SPEC),
    "concrete": lambda: (tf.function(product).get_concrete_function(SPEC), SPEC),
    "graph": lambda: (graph_def(), "product"),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", CALLED)
def test_a_setting_that_a_task_does_not_have_is_refused(task, kind):
    with pytest.raises(ConfigError, match=rf"{task}: received lists=.*tf_amp\.enable"):
        TASKS[task](*CALLED[kind](), lists=LISTS)


@pytest.mark.parametrize("kind", ["function", "tf.function", "concrete", "graph"])
def test_what_the_function_does_not_name_is_refused_with_what_is_allowed(kind):
    with pytest.raises(ConfigError, match=r"opt_levle=.* opt_level.* x"):
        tf_amp.verify(*CALLED[kind](), opt_levle="O2")


def test_what_the_function_names_is_the_functions():
    assert tf_amp.explain(product_by_lists, SPEC, lists=LISTS).decisions
    assert tf_amp.explain(product_of_any, SPEC, y=SPEC).decisions
    assert tf_amp.verify(model(), SPEC, training=False).checks
    assert tf_amp.verify(graph_def(), "product", x=np.ones((8, 8))).checks


def test_tensors_are_given_by_the_names_of_arguments_or_of_their_specs():
    one, two = tf.constant(1.0), tf.constant(2.0)
    function = tf.function(lambda x, y: x - y).get_concrete_function(
        tf.TensorSpec((), name="b"), tf.TensorSpec((), name="a")
    )
    assert function(b=one, a=two) == -1.0
    for named in ({"x": one, "y": two}, {"b": one, "a": two}):
        check_named(tf_amp.verify, function, named)
        assert arguments_by_placeholder(function, (), named) == {"b:0": 1, "a:0": 2}


# Fetches of a GraphDef, given in one way to all that takes one.


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


def two_products():
    """Two products whose values two other nodes go on with."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (512, 512), name="x")
        for name in ("left", "right"):
            tf.nn.relu(tf.matmul(x, x, name=name), name=f"after_{name}")
    return graph.as_graph_def()


def explained(*args, **kwargs):
    return tf_amp.explain(two_products(), *args, **kwargs)


def audited(*args, **kwargs):
    return tf_amp.audit(two_products(), *args, device_profile="v100", **kwargs).plan


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
    verified = tf_amp.verify(two_products(), *args, x=x, opt_level="O2", **kwargs)
    assert {check.name for check in verified.checks} == {"left", "right"}
    mixed = tf_amp.optimize(two_products(), *args, opt_level="O2", **kwargs)
    assert {"left", "right"} <= {node.name for node in mixed.node}


@pytest.mark.parametrize("plan_of", [explained, audited])
@pytest.mark.parametrize("form", WRONG)
def test_what_names_no_nodes_is_refused(plan_of, form):
    args, kwargs = WRONG[form]
    with pytest.raises(ValueError, match="name the nodes whose outputs are read"):
        plan_of(*args, **kwargs)
