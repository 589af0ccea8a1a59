"""Variables that each worker of a ParameterServerStrategy has for itself.

One function is traced for all workers. It knows the variable by its name, which every
worker looks up among its own; nothing is captured, and nothing waits for another
worker. A worker that has not written it yet, or has been started again, has none.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp._tensorflow_private import workers as private

# Servers may outlive those that use them.
_process = secrets.token_hex(4)
_numbers = itertools.count(1)


class WorkerVariable:
    """A vector of fixed length.

    Attributes:
      dtype: of its elements.
    """

    def __init__(self, initial: np.ndarray, name: str) -> None:
        """Choose a name; nothing is made yet.

        Args:
          initial: what it reads as where it has not been written.
          name: for people.
        """
        self.dtype = tf.as_dtype(initial.dtype)
        self._initial = initial
        self._name = f"{name}/{_process}/{next(_numbers)}"

    def read_value(self) -> Any:
        """Return its value on the worker that runs this."""
        handle = self._handle()
        initial = self._initial
        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype),
            lambda: tf.constant(initial),
        )

    def assign(self, value: Any, read_value: bool = False) -> Any:
        """Write it on the worker that runs this; return the operation, if any."""
        return tf.raw_ops.AssignVariableOp(resource=self._handle(), value=value)

    def assign_add(self, value: Any, read_value: bool = False) -> Any:
        """Add to it on the worker that runs this; return the operation, if any."""
        return self.assign(self.read_value() + value)

    def _handle(self) -> Any:
        with tf.name_scope("tf_amp_loss_scale"):
            return tf.raw_ops.VarHandleOp(
                dtype=self.dtype, shape=self._initial.shape, shared_name=self._name
            )


def on_each_worker(act: Callable[[], Any]) -> list[Any]:
    """Do something eagerly on each worker that this process is connected to.

    Returns:
      What it returned, of those that could be reached.
    """
    cluster = private.connected_cluster()
    jobs = [] if cluster is None else [j for j in cluster.job if j.name == "worker"]
    done = []
    for task in sorted(task for job in jobs for task in job.tasks):
        place = f"/job:worker/replica:0/task:{task}/device:CPU:0"
        with contextlib.suppress(tf.errors.UnavailableError), tf.device(place):
            done.append(act())
    return done
