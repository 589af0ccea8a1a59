"""What keeping an optimizer's state on the host saves, and what it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.pricing.seconds import TRANSFER_BYTES_PER_SECOND
from tf_amp.config import devices, scope_registry
from tf_amp.placement.host_copies import Transfer
from tf_amp.placement.named_devices import short_name

_FLOAT32_BYTES = 4


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
    slot_bytes = sum(_bytes(slot) for slot in slots)
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


def _bytes(variable: Any) -> int:
    dtype = tf.as_dtype(variable.dtype)
    return int(tf.TensorShape(variable.shape).num_elements()) * int(dtype.size)


def _mebi(count: int) -> str:
    return f"{count / 2**20:.4g}"
