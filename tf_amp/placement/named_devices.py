"""Devices by the names that users give them.

An unknown device in a graph ends the process, so every name is checked against what
TensorFlow sees before it gets there.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_amp.errors import ConfigError


def checked_devices(given: Sequence[str], name: str = "devices") -> tuple[str, ...]:
    """Return the full names of devices such as "GPU:0", all there and no two the same.

    ConfigError, for others, has the name of the argument.
    """
    present = {short_name(d.name): d.name for d in tf.config.list_logical_devices()}
    names = [short_name(str(each)) for each in given]
    unknown = [str(g) for g, n in zip(given, names, strict=True) if n not in present]
    if unknown:
        raise ConfigError(
            f"{name}: there is no {', '.join(unknown)}; TensorFlow sees "
            f"{', '.join(present)}."
        )
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise ConfigError(
            f"{name}: received {', '.join(map(str, given))}, where "
            f"{', '.join(twice)} occurs twice. "
            "tf.config.set_logical_device_configuration splits one device into several."
        )
    return tuple(present[each] for each in names)


def short_name(device: str) -> str:
    """Return "CPU:0" for "/device:cpu:0", "cpu:0" or a full name; "" for a blank one.

    A device of another process keeps its full name, which names no device here.
    """
    if not device:
        return ""
    text = device if device.startswith("/") else f"/device:{device}"
    try:
        spec = tf.DeviceSpec.from_string(text)
    except ValueError:
        return device
    if spec.job not in (None, "localhost") or spec.task or spec.replica:
        return device
    return f"{spec.device_type}:{spec.device_index or 0}" if spec.device_type else ""
