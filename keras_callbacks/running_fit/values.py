"""Values that callbacks are given, and those that they read."""

from __future__ import annotations

from typing import Any

from tf_amp.errors import ConfigError


def number(value: Any) -> float:
    """Return a scalar as Python has it; waits for the device.

    Args:
      value: a number, a tensor, or a variable of TensorFlow, Keras or a strategy.
    """
    import tensorflow as tf

    return float(tf.convert_to_tensor(value))


def check_one_of(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ConfigError unless a value is one of those allowed, of the same type."""
    if not any(type(value) is type(each) and value == each for each in allowed):
        words = ", ".join(map(repr, allowed))
        raise ConfigError(f"{owner}: {name}={value!r}; allowed are {words}.")
