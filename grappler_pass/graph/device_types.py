"""Which type of device a node runs on: the one place where that is decided.

A node that names a device runs there. Any other runs where its program or function
does, its home: on a GPU if its op has a kernel there, else on the CPU. What XLA
compiles runs at home as a whole, whatever its nodes name.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.errors import AmpError
from grappler_pass.graph import type_slots

# What begins the last part of a device's name where that does not say its type.
_NO_TYPES = frozenset({"", "*", "JOB", "REPLICA", "TASK"})


class DeviceError(AmpError, ValueError):
    """It is not known which device a node runs on; the message says what is missing."""


class Home(NamedTuple):
    """Where a program, or a function of it, runs what names no device.

    Attributes:
      device_type: "CPU", "GPU", or `ABSENT_GPU`.
      is_compiled: whether XLA compiles all of it for one such device. It takes no
        notice then of devices that nodes name, nor of TensorFlow's kernels.
    """

    device_type: str
    is_compiled: bool = False


@functools.lru_cache(maxsize=1024)
def device_type_of(device: str) -> str:
    """Return "GPU", "CPU", ... for a string that names a device.

    Raises:
      DeviceError: it names none.
    """
    found = _type_in(device)
    if not found:
        raise DeviceError(
            f"received device {device!r}, which names no type of device; where such a "
            "node runs depends on its home: ask Node.device_type of a Graph that "
            "was made with one."
        )
    return found


def device_type_at(proto: NodeDef, home: Home | None) -> str:
    """Return the type of device that a node runs on; "" if only a home could tell."""
    if home is not None and home.is_compiled:
        return home.device_type
    named = _type_in(proto.device)
    if named or home is None:
        return named
    if home.device_type == "CPU":
        return "CPU"
    if home.device_type == type_slots.ABSENT_GPU:
        # This TensorFlow has none of its kernels, so the op's definition decides: what
        # has to do with floating point runs there.
        signature = type_slots.signature_of(proto)
        ports = (arg.dtype for arg in (*signature.inputs, *signature.outputs))
        attrs = (value.type for value in proto.attr.values())
        runs_there = not type_slots.FLOATING.isdisjoint((*ports, *attrs))
    else:
        types = tuple(
            (name, value.type)
            for name, value in sorted(proto.attr.items())
            if value.WhichOneof("value") == "type"
        )
        runs_there = type_slots.kernel_exists(proto.op, types, home.device_type)
    return home.device_type if runs_there else "CPU"


@functools.lru_cache(maxsize=1024)
def _type_in(device: str) -> str:
    parts = device.rpartition("/")[2].upper().split(":")
    found = parts[1] if parts[0] == "DEVICE" and len(parts) > 1 else parts[0]
    return "" if found in _NO_TYPES else found
