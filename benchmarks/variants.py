"""What each variant switches on, before the model is built."""

from collections.abc import Callable

import keras
import tensorflow as tf


def nothing() -> None:
    """Leave TensorFlow and Keras as they are."""


def set_keras_policy() -> None:
    """Let Keras layers compute in bfloat16 with float32 variables."""
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")


def switch_on_builtin_pass() -> None:
    """Switch on TensorFlow's own: float16 on GPUs, bfloat16 on CPUs with oneDNN."""
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    name = "auto_mixed_precision" + ("" if has_gpus else "_onednn_bfloat16")
    tf.config.optimizer.set_experimental_options({name: True})


def enable_tf_amp() -> None:
    """Switch on tf-amp, also in a source checkout that starts nothing by itself."""
    import tf_amp

    tf_amp.enable()


PREPARATIONS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (nothing, set_keras_policy, switch_on_builtin_pass, enable_tf_amp)
}
