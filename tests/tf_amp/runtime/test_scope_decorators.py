"""Functions and methods that a scope decorates."""

import pytest
import tensorflow as tf

import tf_amp
from tests.tf_amp.runtime.test_scope import dtype_of, scope
from tf_amp.runtime import switch

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def is_stamped(function):
    """Return whether a function of two matrices is traced under settings."""
    spec = tf.TensorSpec([4, 4])
    graph = function.get_concrete_function(spec, spec).graph
    stamp = graph.get_operations()[0].get_attr("_tf_amp")
    return stamp.decode().partition(":")[0] not in ("", "off")


def test_a_decorated_function_is_traced_in_the_scope_of_each_call():
    def compute(x, y):
        # AutoGraph has to reach through the decorator.
        if tf.reduce_sum(x) > 0:
            x = x @ y
        return tf.nn.relu(x)

    within = tf.function(scope()(compute))
    around = scope(dtype="float16")(tf.function(compute))
    assert [dtype_of(within), dtype_of(around)] == ["bfloat16", "float16"]
    assert is_stamped(around)
    assert not tf_amp.is_enabled()

    @scope(dtype="float16")
    def recursive(depth):
        return recursive(depth - 1) if depth else switch.current_config().dtype

    assert recursive(3) == "float16"


def test_a_decorated_method_is_traced_in_the_scope_of_each_call():
    class Layer:
        factor = 1.0

        @scope(dtype="float16")
        @tf.function
        def compute(self, x, y):
            return tf.nn.relu(x @ y) * self.factor

    first, second = Layer(), Layer()
    second.factor = 0.0
    assert dtype_of(first.compute) == "float16"
    assert is_stamped(second.compute) and not tf_amp.is_enabled()
    ones = tf.ones([4, 4])
    products = [float(layer.compute(ones, ones)[0, 0]) for layer in (first, second)]
    assert products == [4.0, 0.0]
    assert float(Layer.compute(second, ones, ones)[0, 0]) == 0.0
