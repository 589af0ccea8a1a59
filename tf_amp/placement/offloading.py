"""Keep the slots of a Keras optimizer, and its update, on the host.

    optimizer = tf_amp.placement.offload_optimizer(keras.optimizers.Adam())
    model.compile(optimizer, loss, jit_compile=False)

Gradients go down, weights come back. With float32 both ways the weights are those of
the same optimizer without this, bit for bit.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from absl import logging

from tf_amp import _tensorflow_private_placement as private
from tf_amp.errors import ConfigError
from tf_amp.placement.host_copies import HostCopies, Transfer
from tf_amp.placement.named_devices import checked_devices
from tf_amp.placement.prediction import OffloadReport, report_for

_DTYPES = ("float32", "bfloat16", "float16")
_STATE = "tf_amp_offload"


def offload_optimizer(
    optimizer: Any,
    device: str = "CPU:0",
    *,
    down: str = "float32",
    up: str = "float32",
) -> Any:
    """Return a Keras optimizer, the very one, with its state on the host from now on.

    Saves and loads as it would without this. In a function compiled by XLA all runs on
    one device, so compile models with `jit_compile=False`.

    Args:
      optimizer: of Keras 3, not yet built.
      device: where slots and the update are to be.
      down: type that gradients travel in: "float32", "bfloat16" or "float16". Large
        gradients overflow in float16.
      up: type that weights travel in. In 16 bits the model holds rounded weights, the
        host float32 ones; a checkpoint holds the rounded ones.

    Raises:
      ConfigError: the optimizer is of another kind or has been built, the device is not
        there, a type is unknown.
    """
    base = _checked_class(optimizer)
    for name, dtype in (("down", down), ("up", up)):
        if dtype not in _DTYPES:
            raise ConfigError(
                f"{name}: received {dtype!r}; allowed are {', '.join(_DTYPES)}."
            )
    (target,) = checked_devices([device], "device")
    transfer = Transfer(target, tf.as_dtype(down), tf.as_dtype(up))
    optimizer.__class__ = _offloaded_class(base)
    vars(optimizer)[_STATE] = _State(transfer)
    return optimizer


def offload_report(optimizer: Any) -> OffloadReport:
    """Return what offloading saves and takes, as predicted when it was built.

    Raises:
      ConfigError: the optimizer is not offloaded, or has not been built.
    """
    state: _State | None = vars(optimizer).get(_STATE)
    if state is None or state.report is None:
        raise ConfigError(
            f"offload_report: received {type(optimizer).__name__}, which is not "
            "offloaded or not built yet; allowed is what `offload_optimizer` "
            "returned, after `build` or a first step."
        )
    return state.report


class _State:
    """What belongs to one offloaded optimizer; no trackable object."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.copies: HostCopies | None = None
        self.report: OffloadReport | None = None


def _checked_class(optimizer: Any) -> type:
    import keras

    wrapper = getattr(keras.optimizers, "LossScaleOptimizer", ())
    known = isinstance(optimizer, keras.optimizers.Optimizer)
    if not known or (wrapper and isinstance(optimizer, wrapper)):
        raise ConfigError(
            f"optimizer: received {type(optimizer).__module__}."
            f"{type(optimizer).__name__}; allowed are optimizers of Keras 3 "
            "(keras.optimizers) that wrap no other."
        )
    if _STATE in vars(optimizer):
        raise ConfigError("optimizer: received one that is offloaded already.")
    if optimizer.built:
        raise ConfigError(
            f"optimizer: received {optimizer.name!r}, whose slots exist already; "
            "offload it before its first step."
        )
    return type(optimizer)


@functools.cache
def _offloaded_class(base: type) -> type:
    """Return a class like one of Keras', by the same name, that works on the host."""

    def build(optimizer: Any, variables: Any) -> None:
        if not optimizer.built:
            _build(base, optimizer, list(variables))

    def apply(
        optimizer: Any, grads: Any, trainable_variables: Any = None, **kwargs: Any
    ) -> Any:
        return _apply(base, optimizer, list(grads), trainable_variables, kwargs)

    methods = {"build": build, "apply": apply, "__module__": base.__module__}
    methods |= private.offloading_methods(base, _original_of)
    return type(base.__name__, (base,), methods)


def _original_of(optimizer: Any, variable: Any) -> Any:
    copies = vars(optimizer)[_STATE].copies
    return variable if copies is None else copies.original_of(variable)


def _build(base: Any, optimizer: Any, variables: list[Any]) -> None:
    state: _State = vars(optimizer)[_STATE]
    earlier = {id(variable) for variable in optimizer.variables}
    state.copies = HostCopies(variables, state.transfer)
    with tf.init_scope(), tf.device(state.transfer.device):
        base.build(optimizer, list(state.copies.copies))
    slots = [v for v in optimizer.variables if id(v) not in earlier]
    state.report = report_for(
        state.transfer.device,
        state.copies.originals,
        slots,
        state.transfer.down.name,
        state.transfer.up.name,
    )
    logging.info("%s", state.report)


def _apply(
    base: Any, optimizer: Any, grads: list[Any], given: Any, kwargs: dict[str, Any]
) -> Any:
    """Take a step on the host."""
    state: _State = vars(optimizer)[_STATE]
    if not grads or (given is None and not optimizer.built):
        return base.apply(optimizer, grads, given, **kwargs)
    if not optimizer.built:
        optimizer.build(given)
    copies = state.copies
    assert copies is not None, "an optimizer that is built has copies"
    variables = list(copies.originals if given is None else given)
    if len(grads) != len(variables):
        return base.apply(optimizer, grads, given, **kwargs)
    copies.refresh()
    pairs = zip(grads, variables, strict=True)
    local = [copies.gradient_down(gradient, variable) for gradient, variable in pairs]
    with tf.device(state.transfer.device):
        result = base.apply(
            optimizer, local, [copies.copy_of(v) for v in variables], **kwargs
        )
    changed = zip(grads, variables, strict=True)
    copies.weights_up([v for gradient, v in changed if gradient is not None])
    return result
