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
    """Switch on the rewrite that TensorFlow brings for CPUs with oneDNN."""
    tf.config.optimizer.set_experimental_options(
        {"auto_mixed_precision_onednn_bfloat16": True}
    )


def enable_tf_amp() -> None:
    """Switch on tf-amp, also in a source checkout that starts nothing by itself."""
    import tf_amp

    tf_amp.enable()


PREPARATIONS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (nothing, set_keras_policy, switch_on_builtin_pass, enable_tf_amp)
}
