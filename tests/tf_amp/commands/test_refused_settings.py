"""A setting that makes no sense is refused by the function that comes upon it."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.errors import ConfigError

SPEC = tf.TensorSpec([8, 8])
WRONG = {
    "TF_AMP_DEVICE_PROFILE": ("v1000", "did you mean v100?"),
    "TF_AMP_RANGES": ("/nowhere.json", "/nowhere.json"),
    f"{LIST_PREFIX}CLEARLIST_ADD": ("Rellu", "received 'Rellu'"),
}


@tf.function
def product(x):
    return x @ x


@pytest.mark.parametrize(
    "call",
    [
        lambda: tf_amp.explain(product, SPEC),
        lambda: tf_amp.audit(product, SPEC, device_profile="v100"),
        lambda: tf_amp.verify(product, SPEC),
        lambda: tf_amp.ranges(product, [np.ones((8, 8), np.float32)]),
        lambda: tf_amp.optimize(product, SPEC),
    ],
    ids=["explain", "audit", "verify", "ranges", "optimize"],
)
@pytest.mark.parametrize("name", WRONG)
def test_a_function_raises_a_config_error(call, name, monkeypatch):
    value, words = WRONG[name]
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        call()
