"""`autocast` is a scope, and says what it does not take."""

import pytest
import tensorflow as tf

import tf_amp
from tests.tf_amp.runtime.test_scope import EYE, X, dtype_of, product
from tf_amp.errors import ConfigError

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


@pytest.mark.parametrize("dtype", ["float16", tf.float16])
def test_it_takes_a_type_and_whether_it_is_enabled(dtype):
    with tf_amp.autocast(dtype, opt_level="O2"):
        assert dtype_of(product()) == "float16"
    with tf_amp.autocast(dtype, opt_level="O2", enabled=False):
        assert dtype_of(product()) == "float32"


def test_it_decorates():
    @tf_amp.autocast(dtype="bfloat16", opt_level="O2")
    @tf.function
    def decorated(x, y):
        return tf.nn.relu(x @ y)

    assert decorated(tf.constant(X), tf.constant(EYE))[0, 0] == 1.0


@pytest.mark.parametrize(
    ("given", "named"),
    [(("cuda",), {}), (("cuda:0",), {}), ((), {"device_type": "cpu"})],
)
def test_a_device_type_is_refused_with_what_to_write(given, named):
    with pytest.raises(ConfigError, match=r"device type .*: autocast\(dtype="):
        tf_amp.autocast(*given, **named)


def test_other_types_are_refused():
    with pytest.raises(ConfigError, match="allowed are bfloat16, float16"):
        tf_amp.autocast(tf.float32)
