"""Whether to fuse where a program is being traced, and what shows it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from grappler_pass.annotations import FUSED
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import put_attribute
from tf_amp.tracing.stamps import current_config

_STRATEGIES = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
)


def is_wanted(rule: str) -> bool:
    """Return whether the settings here have a rule, and nothing speaks against it.

    XLA fuses by itself; of other strategies, variables are not looked at.
    """
    config = current_config()
    if config is None or rule not in config.fuse:
        return False
    strategy = tf.distribute.get_strategy()
    is_known = not tf.distribute.has_strategy() or isinstance(strategy, _STRATEGIES)
    return is_known and not private.in_xla_context()


def mark(made: Any, rule: str) -> None:
    """Have plans list a kernel by its rule; under eager execution there is none.

    Args:
      made: an operation, or a tensor that it makes.
      rule: its name.
    """
    if not tf.executing_eagerly():
        operation = made if isinstance(made, tf.Operation) else made.op
        put_attribute(operation, FUSED, s=rule.encode())
