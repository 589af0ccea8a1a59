"""Where the variables of a loss scale belong: with the worker whose losses it scales.

A worker that overflows lowers its own scale and skips its own step; it neither waits
for the others nor makes them wait. So nothing of it may lie with parameter servers.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import unconverted
from tf_amp.config import jobs
from tf_amp.tracing.bypass import taking_all


def is_parameter_server(strategy: Any) -> bool:
    """Return whether the workers of a strategy train independently of each other."""
    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def place_here() -> str | None:
    """Return the task that computes what is made here, "" or None for any.

    In a `tf.Graph` that a `replica_device_setter` lays out, computations are placed
    with the worker, and variables elsewhere.
    """
    device = _device_here()
    if device.job is None:
        return None
    task = tf.DeviceSpec(job=device.job, replica=device.replica, task=device.task)
    return str(task.to_string())


def runs_here() -> bool:
    """Return whether what is traced here runs in this process, as far as is known."""
    if jobs.directed_key():
        return False
    device = _device_here()
    return device.job is None or jobs.is_own_task(device.job, device.task or 0)


def collection_here() -> str:
    """Return the collection in which a worker's variables are initialized.

    The global ones of a job are initialized and saved by its chief, which knows nothing
    of those that other workers have for themselves.
    """
    keys = tf.compat.v1.GraphKeys
    name = keys.GLOBAL_VARIABLES if place_here() is None else keys.LOCAL_VARIABLES
    return str(name)


@unconverted
def made_outside(make: Callable[[], Any]) -> Any:
    """Return what a function makes outside of all functions, replicas and scopes.

    A function that is traced a second time may make no variables, nor may what it calls
    in its thread; nor may the thread of a replica make those of all replicas.
    """

    def make_eagerly() -> Any:
        with tf.init_scope(), taking_all():
            return make()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(make_eagerly).result()


def _device_here() -> Any:
    """Return where a computation made here is placed; of no job while eager."""
    if tf.executing_eagerly():
        return tf.DeviceSpec()
    return tf.DeviceSpec.from_string(tf.no_op().device or "")
