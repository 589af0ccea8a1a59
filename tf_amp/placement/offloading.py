"""Keep the slots of a Keras optimizer, and its update, on the host.

    optimizer = tf_amp.placement.offload_optimizer(keras.optimizers.Adam())
    model.compile(optimizer, loss, jit_compile=False)

Gradients go down, weights come back. With float32 both ways the weights are those of
the same optimizer without this, bit for bit.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import placement as private
from tf_amp.config.amp_config import checked_any_dtype
from tf_amp.errors import ConfigError
from tf_amp.placement.host_copies import Transfer
from tf_amp.placement.host_updates import (
    STATE,
    HostState,
    OffloadReport,
    offloaded_class,
)
from tf_amp.placement.named_devices import checked_devices


def offload_optimizer(
    optimizer: Any,
    device: str = "CPU:0",
    *,
    down: str = "float32",
    up: str = "float32",
    verbose: bool = True,
) -> Any:
    """Return a Keras optimizer, the very one, with its state on the host from now on.

    Saves and loads as it would without this. In a function compiled by XLA all runs on
    one device, so compile models with `jit_compile=False`.

    Args:
      optimizer: of Keras 3 or tf_keras, not yet built.
      device: where slots and the update are to be.
      down: type that gradients travel in: "float32", "bfloat16" or "float16". Large
        gradients overflow in float16.
      up: type that weights travel in. In 16 bits the model holds rounded weights, the
        host float32 ones; a checkpoint holds the rounded ones.
      verbose: whether what this saves and takes is printed once the slots exist.

    Raises:
      ConfigError: the optimizer is of another kind or has been built, the device is not
        there, a type is unknown.
    """
    base = _checked_class(optimizer)
    types = [checked_any_dtype(down, "down"), checked_any_dtype(up, "up")]
    (target,) = checked_devices([device], "device")
    transfer = Transfer(target, *map(tf.as_dtype, types))
    optimizer.__class__ = offloaded_class(base)
    # Past an optimizer's own way to set attributes, which tracks what it is given.
    vars(optimizer)[STATE] = HostState(transfer, verbose=verbose)
    return optimizer


def offload_report(optimizer: Any) -> OffloadReport:
    """Return what offloading saves and takes, as predicted when it was built.

    Raises:
      ConfigError: the optimizer is not offloaded, or has not been built.
    """
    state: HostState | None = vars(optimizer).get(STATE)
    if state is None or state.report is None:
        raise ConfigError(
            f"offload_report: received {type(optimizer).__name__}, which is not "
            "offloaded or not built yet; allowed is what `offload_optimizer` "
            "returned, after `build` or a first step."
        )
    return state.report


def _checked_class(optimizer: Any) -> type:
    if not _is_plain_optimizer(optimizer):
        raise ConfigError(
            f"optimizer: received {type(optimizer).__module__}."
            f"{type(optimizer).__name__}; allowed are optimizers of Keras 3 and of "
            "tf_keras (not its legacy ones) that wrap no other."
        )
    if STATE in vars(optimizer):
        raise ConfigError("optimizer: received one that is offloaded already.")
    if private.has_slots(optimizer):
        raise ConfigError(
            f"optimizer: received {optimizer.name!r}, whose slots exist already; "
            "offload it before its first step."
        )
    return type(optimizer)


def _is_plain_optimizer(optimizer: Any) -> bool:
    """Return whether this is of an imported Keras, and wraps no other."""
    for package, home in (("keras", "optimizers"), ("tf_keras", "mixed_precision")):
        if package not in sys.modules:
            continue
        optimizers = importlib.import_module(f"{package}.optimizers")
        if isinstance(optimizer, optimizers.Optimizer):
            wrappers = importlib.import_module(f"{package}.{home}")
            wrapper = getattr(wrappers, "LossScaleOptimizer", ())
            return not isinstance(optimizer, wrapper)
    return False
