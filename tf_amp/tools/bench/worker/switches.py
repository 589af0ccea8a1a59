"""Switch a method on in a process whose program is yet to begin.

TensorFlow and Keras are not imported for it: a program may set what they read from the
environment. What has to be said to them is said as soon as they are imported.
"""

from __future__ import annotations

from typing import Any

import wrapt

from tf_amp.tools import running_scripts
from tf_amp.tools.bench.methods import (
    KERAS,
    TENSORFLOW,
    is_ours,
    settings_of_method,
)

_POLICY = "mixed_bfloat16"
_PASS = "auto_mixed_precision"
_PASS_OF_CPUS = "auto_mixed_precision_onednn_bfloat16"


def switch_on(method: str) -> None:
    """Let the program to come run under a method, as on the command line.

    Raises:
      ConfigError: a setting of tf-amp in the environment makes no sense.
    """
    if method == KERAS:
        wrapt.register_post_import_hook(_set_keras_policy, "keras")
        wrapt.register_post_import_hook(_set_legacy_policy, "tf_keras")
    if method == TENSORFLOW:
        wrapt.register_post_import_hook(_switch_on_builtin_pass, "tensorflow")
    if is_ours(method):
        running_scripts.switch_on(settings_of_method(method))


def _set_keras_policy(keras: Any) -> None:
    keras.config.set_dtype_policy(_POLICY)


def _set_legacy_policy(keras: Any) -> None:
    keras.mixed_precision.set_global_policy(_POLICY)


def _switch_on_builtin_pass(tensorflow: Any) -> None:
    has_gpus = bool(tensorflow.config.list_physical_devices("GPU"))
    option = _PASS if has_gpus else _PASS_OF_CPUS
    tensorflow.config.optimizer.set_experimental_options({option: True})
