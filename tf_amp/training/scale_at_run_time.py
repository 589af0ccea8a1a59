"""The scale at work, for gradient functions traced before anyone asks for gradients.

Whether these will be scaled, and by what, is not known by then: so it is written into a
variable for as long as scaled gradients are computed. It is one at all other times.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private import functions, tracing
from tf_amp.training.scale_state import made_outside

# Holds the variable as soon as something has been traced that reads it, or may be.
_variable: list[Any] = []
# Holds something as soon as there are functions that may ask for the scale.
_askers: list[bool] = []
# Held by the thread whose scale is in the variable.
_in_use = renewed_lock()
# A thread of the runtime may compute gradients that the one in turn waits for.
_PATIENCE_SECONDS = 60.0


def is_eager_outside() -> bool:
    """Return whether there is eager execution around all functions: no `tf.Graph`."""
    with tf.init_scope():
        return bool(tf.executing_eagerly())


def is_differentiating() -> bool:
    """Say whether what is traced here starts from gradients that someone will give."""
    return functions.is_backward_pass(tracing.traced_graph())


def note_asker() -> None:
    """Remember that there are functions that may ask for the scale."""
    _askers[:] = [True]


def scale_at_work() -> Any:
    """Return the scale of gradients when this runs, float32 scalar."""
    return _made_variable().read_value()


def _made_variable() -> Any:
    if not _variable:
        name = "tf_amp_scale_at_work"
        made = made_outside(lambda: tf.Variable(1.0, trainable=False, name=name))
        _variable.append(made)
    return _variable[0]


def multiply(share: Any) -> None:
    """Let gradients be multiplied by another scale from here on, while eager."""
    if _variable:
        _variable[0].assign(_variable[0] * share)


def own_variables() -> list[Any]:
    """Return the variable, if there is one."""
    return list(_variable)


def computed_at(
    scale: Any, compute: Callable[[], Any], *, is_of_state: bool = True
) -> Any:
    """Compute gradients while what was traced ahead knows what they are scaled by.

    It costs nothing where nothing was.

    Args:
      scale: float32 scalar.
      compute: returns a nest of gradients.
      is_of_state: whether a function can read the scale by itself.
    """
    may_be_asked = _variable or (_askers and not is_of_state)
    if not may_be_asked or not is_eager_outside():
        return compute()
    is_eager = tf.executing_eagerly()
    with _in_use.taken_within(_PATIENCE_SECONDS) if is_eager else nullcontext():
        variable = _made_variable()
        variable.assign(scale, read_value=False)
        try:
            result = compute()
        except BaseException:
            if is_eager:
                variable.assign(1.0)
            raise
        parts = tf.nest.flatten(result, expand_composites=True)
        # What waits for a backward function itself does not wait for what that reads.
        known = [tf.identity(part) for part in parts if tf.is_tensor(part)]
        with tf.control_dependencies(known):
            variable.assign(1.0, read_value=False)
        return result
