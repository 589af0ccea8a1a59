"""The private hooks of jobs of several processes, and of exchange between replicas."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from tf_amp._tensorflow_private import eager_context, hooks, unless_gone

_SYNC_REPLICAS = "tensorflow.python.training.sync_replicas_optimizer"
(SERVER_START,) = hooks(
    "what other processes have this one compute stays float32",
    "tensorflow.python.training.server_lib:Server.start",
)
SYNC_APPLY, SYNC_PARTS = hooks(
    "workers whose gradients overflow push them to a SyncReplicasOptimizer",
    f"{_SYNC_REPLICAS}:SyncReplicasOptimizer.apply_gradients",
    f"{_SYNC_REPLICAS}:data_flow_ops",
)


def local_step_of(optimizer: Any) -> Any | None:
    """Return the variable with the step that a worker computes gradients for."""
    return getattr(optimizer, "_local_step", None)


def is_server(made: Any) -> bool:
    """Return whether something is a `tf.distribute.Server`."""
    import tensorflow as tf

    return isinstance(made, tf.distribute.Server)


@unless_gone(
    "get_server_def", "what is computed by other processes stays float32", None
)
def connected_cluster() -> Any | None:
    """Return the ClusterDef of the servers that this process has compute, if any."""
    server_def = eager_context().get_server_def()
    return None if server_def is None else server_def.cluster


@unless_gone("_collective_ops_server_def", "workers do not compare their plans", None)
def collective_server() -> Any | None:
    """Return the ServerDef of this process where it trains in step with others."""
    context = eager_context()
    server_def = context._collective_ops_server_def
    return server_def if context.coordination_service is not None else None


def tell_workers(key: str, value: str, *, anew: bool = False) -> None:
    """Send something to all workers that train in step; what was sent before stays.

    Unless it is sent anew.

    Raises:
      tf.errors.OpError: they cannot be reached.
      AttributeError: this TensorFlow has no such means.
    """
    import tensorflow as tf

    context = eager_context()
    if anew:
        context.delete_config_key_value(key)
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        context.set_config_key_value(key, value)


def ask_workers(key: str, seconds: float) -> str | None:
    """Return what a worker has sent, after waiting for it; None where none has.

    Raises:
      tf.errors.OpError: they cannot be reached.
      AttributeError: this TensorFlow has no such means.
    """
    import tensorflow as tf

    context = eager_context()
    try:
        milliseconds = max(1, int(seconds * 1000))
        return str(context.get_config_key_value(key, timeout_in_ms=milliseconds))
    except tf.errors.DeadlineExceededError:
        return None


_ONE_BY_ONE = "gradients are exchanged in float32, as TensorFlow does it"

(KERAS_ALL_REDUCE,) = hooks(
    f"of Keras 3's optimizers, {_ONE_BY_ONE}",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients",
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
