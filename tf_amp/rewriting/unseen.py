"""The line at the end of a program of which nothing could be rewritten.

TensorFlow tells nobody of eager products, and to ask would cost each of them. But
a process that is meant to compute them makes matrices of weights, or calls `enable`.
One that takes long after that, and in which no graph with a product has arrived, has
computed eagerly. Those that only import TensorFlow, read data or run short tests do
neither, or are done before.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import sys
import time
from typing import Any

from tf_amp.message_codes import Code

LONG_SECONDS = 60.0
# As many as a product has that is worth its casts.
_LARGE_SIDE = 128
_has_met_products = False
# Backends of Keras that were named.
_said: set[str] = set()
_begin = 0.0
_process = 0


def note_products() -> None:
    """Note that a graph with products has arrived, or is run by a server."""
    global _has_met_products
    _has_met_products = True


def note_variable(variable: Any) -> None:
    """Watch a process in which a large matrix of weights has been made."""
    shape = variable.shape
    sides = shape.as_list() if shape.rank else []
    if len(sides) > 1 and all(side is not None for side in sides):
        if math.prod(sides) >= _LARGE_SIDE**2:
            watch()


def note_model() -> None:
    """Say once of a Keras that computes without TensorFlow that it is left alone."""
    config: Any = sys.modules.get("keras.src.backend.config")
    backend = "tensorflow" if config is None else str(config.backend())
    if backend not in ("tensorflow", *_said) and _is_verbose():
        _said.add(backend)
        Code.OTHER_BACKEND.say(
            f"Keras computes with {backend} here, and tf-amp rewrites nothing of it; "
            "set KERAS_BACKEND=tensorflow, or do without tf-amp"
        )


@functools.cache
def watch() -> None:
    """Look at the end of this process whether anything has arrived."""
    global _begin, _process
    _begin, _process = time.monotonic(), os.getpid()
    atexit.register(_say_if_unseen)


def _say_if_unseen() -> None:
    seconds = time.monotonic() - _begin
    is_short = seconds < LONG_SECONDS or os.getpid() != _process
    if is_short or _has_met_products or not _is_verbose():
        return
    from tf_amp._tensorflow_private.functions import CLUSTERED, WHOLE
    from tf_amp.rewriting import host

    said = host.current().said
    if any((Code.COMPILED, label, True) in said for label in (CLUSTERED, WHOLE)):
        return
    if Code.TRACED_BEFORE in said:
        return
    tf: Any = sys.modules.get("tensorflow")
    devices = tf.config.list_logical_devices() if tf is not None else ()
    if any(device.name.startswith("/job:") for device in devices):
        # Graphs go to other processes.
        return
    Code.NOTHING_SEEN.say(
        f"nothing was rewritten in {seconds:.0f} s, since no graph with a matrix "
        "product or convolution was run; eager code is not rewritten: make the step "
        "a tf.function, and leave out run_eagerly=True"
    )


def _is_verbose() -> bool:
    """Return whether mixed precision is on, and its lines are wanted."""
    from tf_amp.config import scope_registry

    choice = scope_registry.choice()
    if choice.is_programs and choice.scope is None:
        return False
    config = scope_registry.base_config()
    is_on = choice.is_programs or bool(config.enabled)
    return is_on and config.rewrites and config.verbose
