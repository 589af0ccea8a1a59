"""The private hooks of the exchange between replicas."""

from __future__ import annotations

import importlib
from typing import Any

from tf_amp._tensorflow_private import Hook, unless_gone

_ONE_BY_ONE = "gradients are exchanged in float32, as TensorFlow does it"

KERAS_ALL_REDUCE = Hook(
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients",
    f"of Keras 3's optimizers, {_ONE_BY_ONE}",
)
_DISTRIBUTE = "tensorflow.python.distribute"


def mirrored(values: tuple[Any, ...]) -> Any:
    """Return one value per replica, all of them equal, as TensorFlow groups them."""
    utilities = importlib.import_module(f"{_DISTRIBUTE}.distribute_utils")
    classes = importlib.import_module(f"{_DISTRIBUTE}.values")
    return utilities.regroup(values, wrap_class=classes.Mirrored)


@unless_gone("distribute_utils.regroup", _ONE_BY_ONE, False)
def can_mirror() -> bool:
    """Return whether results can be handed back; if not, a warning has been given."""
    importlib.import_module(f"{_DISTRIBUTE}.distribute_utils").regroup  # noqa: B018
    importlib.import_module(f"{_DISTRIBUTE}.values").Mirrored  # noqa: B018
    return True


def is_replicated(variable: Any) -> bool:
    """Return whether a variable is one of a strategy's, or a replica's part of one."""
    if hasattr(variable, "values"):
        return True
    held = (variable, getattr(variable, "handle", None))
    return any(hasattr(each, "_distributed_container") for each in held)
