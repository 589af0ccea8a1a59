"""Numbers out of what Keras and TensorFlow keep them in."""

from __future__ import annotations

from typing import Any


def number(value: Any) -> float:
    """Return a scalar as Python has it; waits for the device.

    Args:
      value: a number, a tensor, or a variable of TensorFlow, Keras or a strategy.
    """
    import tensorflow as tf

    return float(tf.convert_to_tensor(value))
