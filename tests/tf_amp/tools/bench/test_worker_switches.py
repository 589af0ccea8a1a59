"""What a method switches on, before its program begins."""

from __future__ import annotations

import pytest

from tests.forking import run_forked

POLICIES = """
print(keras.config.dtype_policy().name, tf_keras.mixed_precision.global_policy().name)
"""
OPTIONS = """
options = tf.config.optimizer.get_experimental_options()
print(options.get("auto_mixed_precision_onednn_bfloat16"))
"""


@pytest.mark.parametrize(
    ("method", "shown", "printed"),
    [
        ("float32", POLICIES, "float32 float32"),
        ("keras", POLICIES, "mixed_bfloat16 mixed_bfloat16"),
        ("tensorflow", OPTIONS, "True"),
        ("tf-amp:O2", OPTIONS, "None"),
    ],
)
def test_a_method_is_switched_on_as_its_documentation_says(
    method: str, shown: str, printed: str
) -> None:
    code = f"""
from tf_amp.tools.bench import worker
worker.switch_on({method!r})
import keras, tensorflow as tf, tf_keras
{shown}
"""
    assert printed in run_forked(code).lines()[-1]


def test_tf_amp_starts_with_the_first_function() -> None:
    code = """
from tf_amp.tools.bench import worker
from tf_amp.runtime import switch
worker.switch_on("tf-amp")
import os
print(os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"])
"""
    assert run_forked(code).lines() == ["1"]


def test_settings_of_a_method_go_before_the_users() -> None:
    code = """
from tf_amp.tools.bench import worker
worker.switch_on("tf-amp:DTYPE=bfloat16+TUNE=off")
from tf_amp.config.amp_config import AmpConfig
config = AmpConfig.from_env()
print(config.enabled, config.dtype, config.tune, config.exclude)
"""
    users = {
        "TF_ENABLE_AUTO_MIXED_PRECISION": "float16",
        "TF_AMP_TUNE": "on",
        "TF_AMP_EXCLUDE": "head/",
    }
    printed = run_forked(code, env=users).lines()
    assert printed == ["True bfloat16 off ('head/',)"]
