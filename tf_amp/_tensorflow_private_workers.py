"""TensorFlow's private hooks around jobs of several processes.

As in `_tensorflow_private`: where a name is gone, one warning says what is lost.
"""

from __future__ import annotations

import importlib
from typing import Any

from tf_amp._tensorflow_private import Hook, warn_once

SERVER_START = Hook(
    "tensorflow.python.training.server_lib",
    "Server",
    "start",
    "what other processes have this one compute stays float32",
)
_SYNC_REPLICAS = "tensorflow.python.training.sync_replicas_optimizer"
_PUSHED = "workers whose gradients overflow push zeros to a SyncReplicasOptimizer"
SYNC_APPLY = Hook(_SYNC_REPLICAS, "SyncReplicasOptimizer", "apply_gradients", _PUSHED)
SYNC_PARTS = Hook(_SYNC_REPLICAS, "", "data_flow_ops", _PUSHED)


def stand_in_for(module: Any, **parts: Any) -> Any:
    """Return a stand-in for a module with other parts."""
    stand_in = type(module)(module.__name__)
    stand_in.__dict__.update(vars(module), **parts)
    return stand_in


def local_step_of(optimizer: Any) -> Any | None:
    """Return the variable with the step that a worker computes gradients for."""
    return getattr(optimizer, "_local_step", None)


def is_server(made: Any) -> bool:
    """Tell whether something is a `tf.distribute.Server`."""
    import tensorflow as tf

    return isinstance(made, tf.distribute.Server)


def connected_cluster() -> Any | None:
    """Return the ClusterDef of the servers that this process has compute, if any."""
    try:
        context = importlib.import_module("tensorflow.python.eager.context").context()
        server_def = context.get_server_def()
    except (ImportError, AttributeError):
        warn_once("get_server_def", "what is computed by other processes stays float32")
        return None
    return None if server_def is None else server_def.cluster
