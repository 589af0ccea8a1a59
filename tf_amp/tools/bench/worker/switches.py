"""Switch a method on in a process whose program is yet to begin.

TensorFlow and Keras are not imported for it: a program may set what they read from the
environment. What has to be said to them is said as soon as they are imported.
"""

from __future__ import annotations

from typing import Any

import wrapt

from tf_amp.tools import running_scripts
from tf_amp.tools.bench.job import KERAS, OURS, TENSORFLOW

_POLICY = "mixed_bfloat16"
_OPTION = "auto_mixed_precision_onednn_bfloat16"


def switch_on(method: str) -> None:
    """Let the program to come run under a method, as on the command line.

    Raises:
      ConfigError: a setting of tf-amp in the environment makes no sense.
    """
    name = method.partition(":")[0]
    if name == KERAS:
        wrapt.register_post_import_hook(_set_keras_policy, "keras")
        wrapt.register_post_import_hook(_set_legacy_policy, "tf_keras")
    if name == TENSORFLOW:
        wrapt.register_post_import_hook(_switch_on_builtin_pass, "tensorflow")
    if name == OURS:
        # The environment has the settings.
        running_scripts.switch_on({})


def _set_keras_policy(keras: Any) -> None:
    keras.config.set_dtype_policy(_POLICY)


def _set_legacy_policy(keras: Any) -> None:
    keras.mixed_precision.set_global_policy(_POLICY)


def _switch_on_builtin_pass(tensorflow: Any) -> None:
    tensorflow.config.optimizer.set_experimental_options({_OPTION: True})
