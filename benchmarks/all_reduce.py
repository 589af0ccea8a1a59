"""Gradients between two replicas: ``python -m benchmarks.all_reduce``.

Counts messages and bytes between devices in graphs as they were executed, and times the
same steps, for the gradients of ResNet-50. Two logical CPU devices stand in for
accelerators: counts are exact, times are those of one memory copying to itself.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import tensorflow as tf

import keras_callbacks
from benchmarks.report import markdown_table
from benchmarks.results import publish
from keras_callbacks.mirrored import DEFAULT_BUCKET_BYTES, buckets_of, to_one_device

DEVICES = ("CPU:0", "CPU:1")
FUSED = ("bfloat16", "float16")
WAYS = ("one device", "TensorFlow's choice", *FUSED)
_SENDS = ("_Send", "_HostSend")
_TITLES = ("exchange", "collectives", "messages", "MB moved", "of float32", "ms")
_LEGEND = (
    "Gradients of ResNet-50, {tensors} of them with {elements:,} elements, exchanged "
    "once between two replicas on logical CPU devices and applied by gradient descent. "
    "*messages* and *MB moved*: tensors sent from one device to the other, counted in "
    "the executed graph, both directions together; TensorFlow's choice is a ring of "
    "collective operations on these devices, which send nothing through the graph, so "
    "its figures are calculated, as are those of NcclAllReduce, which needs GPUs. "
    "*ms*: median of the steps, all variants in turn."
)


@dataclass(frozen=True)
class Sent:
    """What crossed between devices in one step; None for what cannot be counted."""

    messages: int | None
    bytes_moved: int


@dataclass(frozen=True)
class Row:
    """One way to exchange gradients."""

    way: str
    collectives: int
    sent: Sent


def resnet50_shapes() -> tuple[tuple[int, ...], ...]:
    """Return the shapes of ResNet-50's 161 gradients, in the order of its layers.

    Its convolutions have no bias: batch normalization brings one.
    """
    shapes = [*_convolution(7, 3, 64)]
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            shapes += _convolution(1, inputs, width)
            shapes += _convolution(3, width, width)
            shapes += _convolution(1, width, 4 * width)
            if block == 0:
                shapes += _convolution(1, inputs, 4 * width)
            inputs = 4 * width
    return (*shapes, (inputs, 1000), (1000,))


def _convolution(size: int, inputs: int, filters: int) -> tuple[tuple[int, ...], ...]:
    return (size, size, inputs, filters), (filters,), (filters,)


def set_up_devices() -> None:
    """Split the CPU in two, which goes only before TensorFlow has looked at it."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * len(DEVICES)
    tf.config.set_logical_device_configuration(cpu, two)


def strategy_of(way: str) -> tf.distribute.Strategy:
    """Return a strategy over both devices for one of the ways."""
    if way == "one device":
        to_one = tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy(DEVICES, cross_device_ops=to_one)
    word = "float32" if way == "TensorFlow's choice" else way
    return keras_callbacks.mirrored_strategy(DEVICES, all_reduce=word)


def counted(way: str, shapes: Sequence[tuple[int, ...]]) -> Sent:
    """Run one step in a Session that tells what crossed between devices."""
    v1 = tf.compat.v1
    metadata = v1.RunMetadata()
    options = v1.RunOptions(
        trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True
    )
    config = v1.ConfigProto(device_count={"CPU": len(DEVICES)})
    with tf.Graph().as_default():
        strategy = strategy_of(way)
        step = _step_of(strategy, shapes)
        done = tf.group(*tf.nest.flatten(strategy.run(step)))
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run(done, options=options, run_metadata=metadata)
    return _sent(metadata)


def _step_of(
    strategy: tf.distribute.Strategy, shapes: Sequence[tuple[int, ...]]
) -> Callable[[], tf.Tensor]:
    """Return a function for each replica that applies what it holds as gradients."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)

    def step() -> tf.Tensor:
        gradients = [tf.identity(variable) for variable in variables]
        applied = optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return tf.constant(0) if applied is None else applied

    return step


def _sent(metadata: tf.compat.v1.RunMetadata) -> Sent:
    """Add up what was sent from a device to another one."""
    stats = {
        (device.device, node.node_name): node
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    }
    sizes = []
    for graph in metadata.partition_graphs:
        for node in graph.node:
            sender = node.attr["send_device"].s if node.op in _SENDS else b""
            if not sender or sender == node.attr["recv_device"].s:
                continue
            name, _, slot = node.input[0].partition(":")
            outputs = {o.slot: o for o in stats[sender.decode(), name].output}
            sent = outputs[int(slot or 0)].tensor_description
            elements = tf.TensorShape(sent.shape).num_elements()
            sizes.append(tf.as_dtype(sent.dtype).size * elements)
    return Sent(len(sizes), sum(sizes))


def timed(
    ways: Sequence[str], shapes: Sequence[tuple[int, ...]], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each step for each way, measured in turn."""
    steps = {}
    for way in ways:
        strategy = strategy_of(way)
        step = _step_of(strategy, shapes)

        def run(
            strategy: tf.distribute.Strategy = strategy,
            step: Callable[[], tf.Tensor] = step,
        ) -> None:
            strategy.run(step)

        steps[way] = tf.function(run)
        steps[way]()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, step in steps.items():
            start = perf_counter()
            step()
            seconds[way].append(perf_counter() - start)
    return seconds


def rows_of(shapes: Sequence[tuple[int, ...]]) -> tuple[Row, ...]:
    """Count each way; what sends nothing through the graph is calculated."""
    sizes = [math.prod(shape) for shape in shapes]
    one = to_one_device(sizes, len(DEVICES))
    # In rings, all in one pack.
    ring = Sent(None, one.bytes_moved)
    buckets = buckets_of(sizes, DEFAULT_BUCKET_BYTES)
    return (
        Row("one device", one.collectives, counted("one device", shapes)),
        Row("NcclAllReduce", 1, ring),
        Row("TensorFlow's choice", 1, ring),
        *(Row(way, len(buckets), counted(way, shapes)) for way in FUSED),
    )


def _table(rows: Sequence[Row], seconds: Mapping[str, Sequence[float]]) -> str:
    """Return the figures as Markdown."""
    whole = rows[0].sent.bytes_moved
    cells = [
        (
            row.way,
            f"{row.collectives}",
            "-" if row.sent.messages is None else f"{row.sent.messages}",
            f"{row.sent.bytes_moved / 1e6:.2f}",
            f"{row.sent.bytes_moved / whole:.4f}",
            f"{1e3 * median(seconds[row.way]):.0f}" if row.way in seconds else "-",
        )
        for row in rows
    ]
    return markdown_table(_TITLES, cells)


def main() -> None:
    """Count, time, print, and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all_reduce")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    set_up_devices()
    shapes = resnet50_shapes()
    rows = rows_of(shapes)
    seconds = timed(WAYS, shapes, options.rounds)
    elements = sum(map(math.prod, shapes))
    legend = _LEGEND.format(tensors=len(shapes), elements=elements)
    markdown = f"{_table(rows, seconds)}\n\n{legend}"
    publish(
        "all_reduce",
        markdown,
        seconds,
        rounds=options.rounds,
        is_whole=not options.dry,
    )


if __name__ == "__main__":
    main()
