"""Show when an offloaded optimizer updates, beside the backward pass on the device.

    python benchmarks/offload_trace.py

A second logical CPU device stands for the accelerator. Prints when
the products of the backward pass ran, and one op of each layer's update.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import tempfile

import keras
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tf_amp.placement import offload_optimizer

LAYERS = 6
WIDTH = 1024
BATCH = 512
HOST, DEVICE = "CPU:0", "CPU:1"


@dataclasses.dataclass(frozen=True)
class Event:
    """One node of the step, in milliseconds since the trace began."""

    name: str
    begin: float
    end: float


def main() -> None:
    """Trace a step and print what overlaps."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    # Both devices share this pool; alone, each would have one of its own.
    tf.config.threading.set_inter_op_parallelism_threads(8)
    events = traced_step()
    updates = [e for e in events if is_update(e.name)]
    products = [e for e in events if is_product(e.name)]
    for event in sorted((*updates, *products), key=lambda e: e.begin):
        print(f"{event.begin:8.2f} {event.end:8.2f} ms  {event.name}")
    count = overlapping(updates, products)
    print(
        f"{count} of {len(updates)} updates overlap a product of the backward pass; "
        "the last gradient leaves none to overlap"
    )


def is_update(name: str) -> bool:
    """Return whether an op is the root of a layer's second moment, on the host.

    The other roots are of the powers of beta, one per layer before it.
    """
    found = re.fullmatch(r"adam/Sqrt_(\d+):Sqrt", name)
    return found is not None and int(found.group(1)) % 2 == 1


def is_product(name: str) -> bool:
    """Return whether an op is a product of the backward pass, on the device."""
    return name.startswith("gradient_tape/") and name.endswith("MatMul")


def overlapping(updates: list[Event], products: list[Event]) -> int:
    """Count updates during any part of which a product ran."""
    return sum(
        any(p.begin < u.end and u.begin < p.end for p in products) for u in updates
    )


def traced_step() -> list[Event]:
    """Return the events of the fourth step of a chain of dense layers."""
    optimizer = offload_optimizer(keras.optimizers.Adam(), HOST)
    with tf.device(DEVICE):
        weights = [
            tf.Variable(tf.random.normal([WIDTH, WIDTH]) / 32.0) for _ in range(LAYERS)
        ]
        batch = tf.random.normal([BATCH, WIDTH])

    def take_step(x: tf.Tensor) -> None:
        with tf.device(DEVICE), tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
            loss = tf.reduce_mean(y * y)
            gradients = tape.gradient(loss, weights)
        optimizer.apply(gradients, weights)

    step = tf.function(take_step)
    for _ in range(3):
        step(batch)
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            step(batch)
            weights[0].numpy()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        return events_from(xplane_pb2.XSpace.FromString(path.read_bytes()))


def events_from(space: xplane_pb2.XSpace) -> list[Event]:
    """Return what ran on the host's threads, since the earliest of it."""
    rows = [
        (plane.event_metadata[event.metadata_id].name, line, event)
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    ]
    begin = min(line.timestamp_ns + e.offset_ps / 1e3 for _, line, e in rows)
    return [
        Event(
            name,
            start := (line.timestamp_ns + event.offset_ps / 1e3 - begin) / 1e6,
            start + event.duration_ps / 1e9,
        )
        for name, line, event in rows
    ]


if __name__ == "__main__":
    main()
