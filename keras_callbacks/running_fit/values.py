"""Values that callbacks are given, and those that they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_amp.errors import ConfigError


def number(value: Any) -> float:
    """Return a scalar as Python has it; waits for the device.

    It may be a number, a tensor, or a variable of TensorFlow, Keras or a strategy.
    """
    return float(tf.convert_to_tensor(value))


def steps_up_to(batch: int, params: Mapping[str, Any] | None) -> int:
    """Return how many steps of an epoch there were once a batch has ended.

    Batches count from 0; the last of several in one call may be none in fact. `params`
    is what Keras tells of the run.
    """
    in_epoch = (params or {}).get("steps")
    return batch + 1 if in_epoch is None else min(batch + 1, int(in_epoch))


def check_one_of(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ConfigError unless a value is one of those allowed, of the same type."""
    if not any(type(value) is type(each) and value == each for each in allowed):
        words = ", ".join(map(repr, allowed))
        raise ConfigError(f"{owner}: {name}={value!r}; allowed are {words}.")
