"""How much memory a measurement may hold."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterable

import tensorflow as tf

from tf_amp.measuring.op_timing import quiet_config

# A measurement may hold this share of what is free at its start.
SHARE = 0.25
# Where the system does not report it: small enough for anything that trains a model.
_UNKNOWN_BYTES = 1 << 30

_MEMORY = pathlib.Path("/proc/meminfo")
_GROUP = pathlib.Path("/sys/fs/cgroup")


def most_bytes(device_type: str = "CPU") -> int:
    """Return how many bytes a measurement may hold now: a quarter of what is free."""
    return int(SHARE * free_bytes(device_type))


def free_bytes(device_type: str = "CPU") -> int:
    """Return what the machine and the process' control group leave, or every GPU."""
    if device_type == "CPU":
        limits = [_machine_free(), _group_free()]
    else:
        limits = [_pool_free(*pool) for pool in _pools(device_type)]
    return min((each for each in limits if each is not None), default=_UNKNOWN_BYTES)


@functools.cache
def _pools(device_type: str) -> tuple[tuple[str, int], ...]:
    """Return TensorFlow's devices of a type, and the most that each may allocate."""
    with tf.compat.v1.Session(graph=tf.Graph(), config=quiet_config()) as session:
        devices = [d for d in session.list_devices() if d.device_type == device_type]
    # Of several processes, each asks for its own device.
    names = (f"/{device.name.rpartition('/')[2]}" for device in devices)
    return tuple(zip(names, (d.memory_limit_bytes for d in devices), strict=True))


def _pool_free(name: str, most: int) -> int | None:
    """Return what is left; None where TensorFlow keeps no account of a device."""
    try:
        used = tf.config.experimental.get_memory_info(name)["current"]
    except ValueError:
        return None
    return max(most - int(used), 0)


def _machine_free() -> int | None:
    for text in _texts([_MEMORY]):
        for line in text.splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _group_free() -> int | None:
    names = ("memory.max", "memory.current", "memory.stat")
    texts = list(_texts(_GROUP / name for name in names))
    if len(texts) < len(names) or not texts[0].strip().isdigit():
        return None
    # Pages of files count as used, but are given up for whoever needs memory.
    fields = (line.split() for line in texts[2].splitlines())
    spare = sum(int(field[1]) for field in fields if field[0] == "inactive_file")
    return max(int(texts[0]) - int(texts[1]) + spare, 0)


def _texts(paths: Iterable[pathlib.Path]) -> Iterable[str]:
    for path in paths:
        try:
            yield path.read_text(errors="replace")
        except OSError:
            continue
