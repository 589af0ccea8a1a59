"""Optimizers like those of Keras that take their steps on the host; what that takes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.pricing.seconds import TRANSFER_BYTES_PER_SECOND
from tf_amp._tensorflow_private import placement as private
from tf_amp.config import devices, scope_registry
from tf_amp.placement.host_copies import HostCopies, Transfer
from tf_amp.placement.named_devices import short_name

_FLOAT32_BYTES = 4
STATE = "tf_amp_offload"
Update = Callable[[list[Any], list[Any]], Any]


@dataclasses.dataclass(frozen=True)
class OffloadReport:
    """Predictions for one optimizer; seconds are of transfers that nothing hides.

    Attributes:
      device: where slots and the update are.
      device_bytes_saved: size of the slots, which the accelerator need not hold.
      host_bytes: what the host holds: slots, and a float32 copy of the weights.
      bytes_down: gradients per step.
      bytes_up: weights per step.
      transfer_seconds: of both, at PCI Express 3.0's rate.
      update_seconds: by which the host's memory is slower than the accelerator's at the
        update itself.
    """

    device: str
    device_bytes_saved: int
    host_bytes: int
    bytes_down: int
    bytes_up: int
    transfer_seconds: float
    update_seconds: float

    @property
    def seconds_added(self) -> float:
        """Seconds per step if no other work runs meanwhile."""
        return self.transfer_seconds + self.update_seconds

    def __str__(self) -> str:
        """Show one line."""
        return (
            f"optimizer on {self.device}: saves {_mebi(self.device_bytes_saved)} MiB "
            f"on the device, takes {_mebi(self.host_bytes)} MiB on the host; per step "
            f"{_mebi(self.bytes_down)} MiB down and {_mebi(self.bytes_up)} MiB up, "
            f"predicted {self.seconds_added * 1e3:.3g} ms added where nothing overlaps"
        )


def report_for(
    transfer: Transfer, variables: Sequence[Any], slots: Sequence[Any]
) -> OffloadReport:
    """Predict for an optimizer's variables, all float32, and its slots."""
    device = transfer.device
    elements = sum(int(v.shape.num_elements()) for v in variables)
    slot_bytes = sum(
        int(tf.TensorShape(slot.shape).num_elements()) * tf.as_dtype(slot.dtype).size
        for slot in slots
    )
    bytes_down = elements * transfer.down.size
    bytes_up = elements * transfer.up.size
    # Read and written: slots and weights. Read: gradients.
    touched = 2 * slot_bytes + 3 * elements * _FLOAT32_BYTES
    here, there = _memory_rate(device), _memory_rate(variables[0].device)
    return OffloadReport(
        device=short_name(device),
        device_bytes_saved=slot_bytes,
        host_bytes=slot_bytes + elements * _FLOAT32_BYTES,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        transfer_seconds=(bytes_down + bytes_up) / TRANSFER_BYTES_PER_SECOND,
        update_seconds=max(0.0, touched / here - touched / there),
    )


def _memory_rate(device: str) -> float:
    kind = short_name(device).partition(":")[0]
    target = devices.device_of_type(kind)
    profile = devices.profile_of(scope_registry.base_config(), target)
    return profile.roofline.bytes_per_second["float32"]


def _mebi(count: int) -> str:
    return f"{count / 2**20:.4g}"


@dataclasses.dataclass(eq=False)
class HostState:
    """What belongs to one offloaded optimizer, with copies once that is built.

    It is no trackable object.
    """

    transfer: Transfer
    verbose: bool
    copies: HostCopies | None = None
    report: OffloadReport | None = None


@functools.cache
def offloaded_class(base: type) -> type:
    """Return a class like one of Keras', by the same name, that works on the host."""
    methods: dict[str, Any] = {
        "__module__": base.__module__,
        "build": lambda optimizer, variables: _build(base, optimizer, variables),
        **private.offloading_methods(base, _original_of),
    }
    # Keras 3 has both, and the one ends in the other.
    if hasattr(base, "apply"):
        methods["apply"] = _applying(base)
    else:
        methods["apply_gradients"] = _applying_pairs(base)
    return type(base.__name__, (base,), methods)


def _build(base: Any, optimizer: Any, variables: Any) -> None:
    if private.has_slots(optimizer):
        return
    state: HostState = vars(optimizer)[STATE]
    earlier = {id(variable) for variable in optimizer.variables}
    state.copies = HostCopies(list(variables), state.transfer)
    with tf.init_scope(), tf.device(state.transfer.device):
        base.build(optimizer, list(state.copies.copies))
    slots = [v for v in optimizer.variables if id(v) not in earlier]
    state.report = report_for(state.transfer, state.copies.originals, slots)
    if state.verbose:
        print(state.report)


def _applying(base: Any) -> Callable[..., Any]:
    """Return the method of Keras 3."""

    def apply(
        optimizer: Any, grads: Any, trainable_variables: Any = None, **kwargs: Any
    ) -> Any:
        grads, given = list(grads), trainable_variables
        if not grads or (given is None and not optimizer.built):
            return base.apply(optimizer, grads, given, **kwargs)
        if not optimizer.built:
            optimizer.build(given)
        variables = list(_copies(optimizer).originals if given is None else given)
        if len(grads) != len(variables):
            return base.apply(optimizer, grads, given, **kwargs)
        return _update(
            optimizer,
            grads,
            variables,
            lambda local, copies: base.apply(optimizer, local, copies, **kwargs),
        )

    return apply


def _applying_pairs(base: Any) -> Callable[..., Any]:
    """Return the method of tf_keras."""

    def apply_gradients(
        optimizer: Any, grads_and_vars: Any, name: Any = None, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        grads = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if pairs and not private.has_slots(optimizer):
            with tf.name_scope(name or optimizer.name or "optimizer"):
                optimizer.build(variables)

        def update(local: list[Any], copies: list[Any]) -> Any:
            given = zip(local, copies, strict=True)
            return base.apply_gradients(optimizer, given, name=name, **kwargs)

        if all(gradient is None for gradient in grads):
            return update(grads, variables)
        return _update(optimizer, grads, variables, update)

    return apply_gradients


def _update(
    optimizer: Any, grads: Sequence[Any], variables: Sequence[Any], update: Update
) -> Any:
    """Let an optimizer that is built update the copies, and bring weights back."""
    copies, device = _copies(optimizer), vars(optimizer)[STATE].transfer.device
    copies.refresh()
    pairs = list(zip(grads, variables, strict=True))
    local = [copies.gradient_down(gradient, variable) for gradient, variable in pairs]
    with tf.device(device):
        result = update(local, [copies.copy_of(v) for v in variables])
    copies.weights_up([v for gradient, v in pairs if gradient is not None])
    return result


def _copies(optimizer: Any) -> HostCopies:
    copies: HostCopies | None = vars(optimizer)[STATE].copies
    assert copies is not None, "an optimizer that is built has copies"
    return copies


def _original_of(optimizer: Any, variable: Any) -> Any:
    copies = vars(optimizer)[STATE].copies
    return variable if copies is None else copies.original_of(variable)
