"""The scale at work, for gradient functions traced before anyone asks for gradients.

Whether these will be scaled, and by what, is not known by then: so it is written into a
variable for as long as scaled gradients are computed. It is one at all other times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import functions, tracing
from tf_amp.training.loss_scale.placing import made_outside

# Holds the variable as soon as something has been traced that reads it.
_variable: list[Any] = []


def is_eager_outside() -> bool:
    """Return whether there is eager execution around all functions: no `tf.Graph`."""
    with tf.init_scope():
        return bool(tf.executing_eagerly())


def is_differentiating() -> bool:
    """Say whether what is traced here starts from gradients that someone will give."""
    return functions.is_backward_pass(tracing.traced_graph())


def scale_at_work() -> Any:
    """Return what gradients are multiplied by when this runs, float32 scalar."""
    if not _variable:
        name = "tf_amp_scale_at_work"
        made = made_outside(lambda: tf.Variable(1.0, trainable=False, name=name))
        _variable.append(made)
    return _variable[0].read_value()


def own_variables() -> list[Any]:
    """Return the variable, if there is one."""
    return list(_variable)


def computed_at(scale: Any, compute: Callable[[], Any]) -> Any:
    """Compute gradients while what was traced ahead knows what they are scaled by.

    It costs nothing where nothing was.

    Args:
      scale: float32 scalar.
      compute: returns a nest of gradients.
    """
    if not _variable or not is_eager_outside():
        return compute()
    _variable[0].assign(scale, read_value=False)
    try:
        result = compute()
    except BaseException:
        if tf.executing_eagerly():
            _variable[0].assign(1.0)
        raise
    parts = tf.nest.flatten(result, expand_composites=True)
    # What waits for a backward function itself does not wait for what that reads.
    known = [tf.identity(part) for part in parts if tf.is_tensor(part)]
    with tf.control_dependencies(known):
        _variable[0].assign(1.0, read_value=False)
    return result
