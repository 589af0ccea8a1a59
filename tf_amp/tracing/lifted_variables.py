"""Variables that are made while a function is traced, and outlast it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import unconverted
from tf_amp.tracing.bypass import taking_all


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
