"""Strategies for several devices of one machine, and how their gradients travel.

They may be exchanged between replicas in 16 bits, many in one collective.

bfloat16 has float32's range: values are rounded and sent. float16 has not: each message
is multiplied by a power of two of its own, chosen from the largest finite value in it,
whose exponent travels as the message's last element. So nothing finite overflows,
whatever the gradients, and replicas need not agree on anything beforehand. What is
infinite or NaN arrives as such, and does not disturb its neighbors. bfloat16 rounds
what is beyond 3.396e38, the last 0.2 % of float32's range, to infinity.

`FusedAllReduce` is the exchange as `tf.distribute.MirroredStrategy` takes it;
`mirrored_strategy` makes a strategy with it. Only what is reduced onto variables is
sent in 16 bits, which is how optimizers hand gradients over, those of Keras 3 as
`_name_variables` has it. Whatever else a program reduces keeps its precision: the vote
of a loss scale, moments of a batch, metrics.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_amp._tensorflow_private import install, wrapping_unconverted
from tf_amp._tensorflow_private import training as private
from tf_amp.config.amp_config import Dtype, checked_any_dtype
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code
from tf_amp.placement.named_devices import checked_devices, short_name

BYTES_PER_ELEMENT = 2
# All of ResNet-50 (51 MB in 16 bits) in one; a model ten times as large in eight.
DEFAULT_BUCKET_BYTES = 64 * 2**20
# The largest value of a message is brought between 2^13 and 2^15, which float16 holds
# with room for a logarithm that is off by one.
_TARGET = 14.0
# Exponents whose power of two, and its inverse, are normal numbers of float32.
_LOWEST, _HIGHEST = -113.0, 126.0
_BIAS, _MANTISSA = 127.0, 2.0**23


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Some tensors, end to end: their places among all, and sizes in elements."""

    places: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return how many elements the bucket holds."""
        return sum(self.sizes)

    def shards(self, replicas: int) -> tuple[int, ...]:
        """Return the elements that each replica adds up, as even as can be."""
        share, rest = divmod(self.elements, replicas)
        return tuple(share + (i < rest) for i in range(replicas))


def buckets_of(sizes: Sequence[int], bucket_bytes: int) -> tuple[Bucket, ...]:
    """Put tensors into buckets, the last first, as gradients become ready.

    A tensor larger than a bucket gets one of its own; none is cut. Sizes are in
    elements; a bucket holds so many bytes in 16 bits, at most.
    """
    runs: list[list[int]] = []
    free_bytes = 0
    for place in reversed(range(len(sizes))):
        size_bytes = BYTES_PER_ELEMENT * sizes[place]
        free_bytes -= size_bytes
        if not runs or free_bytes < 0:
            runs.append([])
            free_bytes = bucket_bytes - size_bytes
        runs[-1].append(place)
    return tuple(Bucket(tuple(run), tuple(sizes[i] for i in run)) for run in runs)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A 16-bit type, and whether messages in it are scaled.

    Attributes:
      dtype: its name.
      rounding: the largest relative error of rounding to it.
      floor: the largest absolute error of scaling and rounding, relative to the
        message's largest value.
    """

    dtype: str
    rounding: float
    floor: float

    @property
    def is_scaled(self) -> bool:
        """Return whether a message carries an exponent."""
        return self.floor > 0

    def encode(self, values: Sequence[Any], shards: Sequence[int]) -> list[Any]:
        """Return messages with float32 vectors, end to end.

        Shards are the elements per message; they add up to those of the values.
        """
        exponent = _exponent(values) if self.is_scaled else None
        if exponent is not None:
            factor = _power_of_two(exponent)
            values = [value * factor for value in values]
        low = [tf.cast(value, self.dtype) for value in values]
        joined = low[0] if len(low) == 1 else tf.concat(low, 0)
        parts = [joined] if len(shards) == 1 else tf.split(joined, list(shards))
        if exponent is None:
            return list(parts)
        # Whole numbers of this size are exact in float16.
        tail = tf.cast(tf.reshape(exponent, [1]), self.dtype)
        return [tf.concat([part, tail], 0) for part in parts]

    def decode(self, message: Any) -> Any:
        """Return the values of a message, float32."""
        wide = tf.cast(message, tf.float32)
        return wide[:-1] * _power_of_two(-wide[-1]) if self.is_scaled else wide

    def decode_split(self, messages: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Return the values of messages, end to end, as vectors of other sizes."""
        if self.is_scaled:
            joined = tf.concat([self.decode(message) for message in messages], 0)
            return list(tf.split(joined, list(sizes)))
        # What has no factor of its own is cast last: 16 bits are quicker to copy.
        parts = tf.split(tf.concat(messages, 0), list(sizes))
        return [self.decode(part) for part in parts]


BFLOAT16 = Encoding("bfloat16", 2.0**-8, 0.0)
# Half a step of float16's subnormal numbers, 2^-25, against a peak of 2^13.
FLOAT16 = Encoding("float16", 2.0**-11, 2.0**-38)
ENCODINGS = {encoding.dtype: encoding for encoding in (BFLOAT16, FLOAT16)}


def _exponent(values: Sequence[Any]) -> Any:
    """Return what power of two to scale by, a whole number in float32."""
    sizes = [tf.abs(value) for value in values]
    finite = [tf.where(tf.math.is_finite(size), size, 0.0) for size in sizes]
    peaks = [tf.reduce_max(size) for size in finite]
    # The maximum of nothing is -inf.
    peak = tf.reduce_max(tf.stack([0.0, *peaks]))
    exponent = _TARGET - tf.floor(tf.math.log(peak) / math.log(2.0))
    return tf.clip_by_value(exponent, _LOWEST, _HIGHEST)


def _power_of_two(exponent: Any) -> Any:
    """Return 2 to a whole number, exactly: `tf.pow` may be off by a rounding.

    Without arithmetic on integers, which a GPU leaves to its host.
    """
    bits = tf.cast((exponent + _BIAS) * _MANTISSA, tf.int32)
    return tf.bitcast(bits, tf.float32)


def exchange(
    gradients: Sequence[Sequence[Any]],
    devices: Sequence[str],
    bucket: Bucket,
    encoding: Encoding,
    *,
    is_mean: bool,
) -> list[list[Any]]:
    """Return the sums, or means, of some gradients on every replica.

    Each replica owns a shard of the bucket. It gets this shard from all others in 16
    bits, adds in float32, and sends the sum to all others in 16 bits. Twice (n - 1) / n
    of the bucket leave each of n replicas, as in a ring, which is the least that is
    possible; but values are rounded twice, not once per hop. Replicas use the sum as it
    was sent, the owner too: all end with the same bits.

    Args:
      gradients: per replica, those of the bucket, float32.
      devices: of the replicas.
      bucket: the gradients' sizes; static.
      encoding: what they travel in.
      is_mean: whether to divide by the number of replicas.
    """
    shards = bucket.shards(len(devices))
    sent = []
    for device, own in zip(devices, gradients, strict=True):
        with tf.device(device):
            flat = [tf.reshape(gradient, [-1]) for gradient in own]
            sent.append(encoding.encode(flat, shards))
    sums = []
    for owner, device in enumerate(devices):
        with tf.device(device):
            parts = [encoding.decode(messages[owner]) for messages in sent]
            total = tf.add_n(parts)
            total = total / len(devices) if is_mean else total
            sums += encoding.encode([total], shards[owner : owner + 1])
    results = []
    for device, own in zip(devices, gradients, strict=True):
        with tf.device(device):
            parts = encoding.decode_split(sums, bucket.sizes)
            pairs = zip(parts, own, strict=True)
            results.append([tf.reshape(part, like.shape) for part, like in pairs])
    return results


_FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Traffic:
    """One way to exchange the gradients of a step.

    Collectives are started one by one; bytes go from device to device, over all
    devices.
    """

    way: str
    collectives: int
    bytes_moved: int

    def __str__(self) -> str:
        """Return one line."""
        megabytes = self.bytes_moved / 1e6
        return f"{self.way}: {self.collectives} collectives, {megabytes:.3f} MB"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What becomes of the gradients of one optimizer, per step.

    Attributes:
      replicas: that take part.
      tensors: dense gradients, exchanged in 16 bits.
      left: gradients that TensorFlow exchanges one by one: sparse ones, and those that
        are not float32 or whose shape is known only when they are there.
      before: what `tf.distribute.ReductionToOneDevice` does with the dense ones.
      after: what is done instead.
    """

    replicas: int
    tensors: int
    left: int
    before: Traffic
    after: Traffic

    def __str__(self) -> str:
        """Return a paragraph."""
        share = self.after.bytes_moved / max(self.before.bytes_moved, 1)
        lines = [
            f"{self.tensors} gradients on {self.replicas} replicas, per step",
            f"  before  {self.before}",
            f"  after   {self.after} ({share:.1%} of the bytes)",
        ]
        if self.left:
            lines.append(f"  {self.left} more, sparse or not float32, as before")
        return "\n".join(lines)


def to_one_device(sizes: Sequence[int], replicas: int) -> Traffic:
    """Count what `tf.distribute.ReductionToOneDevice` moves, tensor by tensor."""
    moved = _moved(_FLOAT32_BYTES * sum(sizes), replicas)
    return Traffic("ReductionToOneDevice float32", len(sizes), moved)


def in_16_bits(buckets: Sequence[Bucket], encoding: Encoding, replicas: int) -> Traffic:
    """Count what the exchange in 16 bits moves, exponents included."""
    # Each message carries an exponent where it is scaled.
    exponents = replicas if encoding.is_scaled else 0
    elements = sum(bucket.elements + exponents for bucket in buckets)
    moved = _moved(BYTES_PER_ELEMENT * elements, replicas)
    return Traffic(f"fused {encoding.dtype}", len(buckets), moved)


def _moved(data_bytes: int, replicas: int) -> int:
    """Return what an all-reduce sends: in each of two phases, all but a share."""
    return 2 * (replicas - 1) * data_bytes


class FusedAllReduce(tf.distribute.ReductionToOneDevice):  # type: ignore[misc]
    """Exchange dense gradients in buckets of 16-bit values; the rest as it was."""

    def __init__(self, dtype: str, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> None:
        """Choose a 16-bit type, and the bytes that travel together at most.

        Smaller buckets start earlier, while other gradients are still computed, and are
        more.
        """
        super().__init__()
        self._encoding = ENCODINGS[dtype]
        self._bucket_bytes = bucket_bytes
        self._exchanges: dict[Exchange, None] = {}

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return what has been exchanged so far, each kind once."""
        return tuple(self._exchanges)

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        """Reduce values to their destinations; see `tf.distribute.CrossDeviceOps`."""
        pairs = list(value_destination_pairs)
        dense = [i for i, pair in enumerate(pairs) if _is_dense_gradient(*pair)]
        devices = _devices(pairs[dense[0]][1]) if dense else ()
        # Those of variables on the same devices travel together.
        fused = [i for i in dense if _devices(pairs[i][1]) == devices]
        results: dict[int, Any] = {}
        if fused:
            gradients = [pairs[i][0].values for i in fused]
            sizes = [values[0].shape.num_elements() for values in gradients]
            buckets = buckets_of(sizes, self._bucket_bytes)
            left, replicas = len(pairs) - len(fused), len(devices)
            before = to_one_device(sizes, replicas)
            after = in_16_bits(buckets, self._encoding, replicas)
            self._exchanges[Exchange(replicas, len(sizes), left, before, after)] = None
            is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
            for bucket in buckets:
                of_bucket = [gradients[place] for place in bucket.places]
                by_replica = list(zip(*of_bucket, strict=True))
                reduced = exchange(
                    by_replica, devices, bucket, self._encoding, is_mean=is_mean
                )
                of_places = zip(*reduced, strict=True)
                for place, values in zip(bucket.places, of_places, strict=True):
                    results[fused[place]] = private.mirrored(values)
        return [
            results[i]
            if i in results
            else self.reduce_implementation(reduce_op, value, destination, options)
            for i, (value, destination) in enumerate(pairs)
        ]


def _is_dense_gradient(value: Any, destination: Any) -> bool:
    if not isinstance(destination, tf.Variable):
        return False
    if len(value.values) != len(_devices(destination)):
        return False
    return all(
        isinstance(part, tf.Tensor)
        and part.dtype == tf.float32
        and part.shape.is_fully_defined()
        for part in value.values
    )


def _devices(variable: Any) -> tuple[str, ...]:
    return tuple(part.device for part in getattr(variable, "values", ()))


_NAMED = 3


class MirroredStrategy(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """TensorFlow's own, which knows how its gradients are exchanged.

    Attributes:
      exchange: of gradients in 16 bits; None where TensorFlow exchanges them.
    """

    def __init__(self, devices: Sequence[str], exchange: FusedAllReduce | None) -> None:
        """Mirror variables on devices, by names as TensorFlow has them.

        Without an exchange it is TensorFlow's own.
        """
        super().__init__(devices, cross_device_ops=exchange)
        self.exchange = exchange
        _decorate_keras()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return what is exchanged in 16 bits per step, once a step was traced."""
        return self.exchange.exchanges if self.exchange else ()

    def scope(self) -> Any:
        """Return a context in which variables are mirrored."""
        _decorate_keras()
        return super().scope()


def mirrored_strategy(
    devices: Sequence[str] | None = None,
    all_reduce: Dtype = "float32",
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> MirroredStrategy:
    """Return a strategy that trains on several devices of this machine.

        strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
        with strategy.scope():
            model = ...

    Args:
      devices: such as "GPU:0", "/device:CPU:1"; None for all GPUs that TensorFlow sees,
        or all its CPU devices where there is none.
      all_reduce: what gradients travel in. "float32" leaves the exchange to TensorFlow,
        "bfloat16" and "float16" halve the bytes; `Encoding` says what bounds
        their error. Sums are in float32 with each.
      bucket_bytes: of gradients that travel together, in 16 bits; not looked at for
        "float32".

    Raises:
      ConfigError: a device is not there or is named twice, or another argument is none
        of those allowed.
    """
    all_reduce = checked_any_dtype(all_reduce, "all_reduce")
    check_count("mirrored_strategy", "bucket_bytes", bucket_bytes)
    if devices is None:
        present = [device.name for device in tf.config.list_logical_devices()]
        gpus = [name for name in present if short_name(name).startswith("GPU")]
        cpus = [name for name in present if short_name(name).startswith("CPU")]
        names = gpus or cpus
    else:
        given = [devices] if isinstance(devices, str) else list(map(str, devices))
        if not given:
            raise ConfigError(
                "devices: received an empty list; None stands for all there are."
            )
        names = list(checked_devices(given))
    exchange = None
    if len(names) == 1:
        logging.warning("One device, %s: there is nothing to reduce.", names[0])
    elif all_reduce != "float32" and private.can_mirror():
        exchange = FusedAllReduce(all_reduce, bucket_bytes)
    _note_earlier_variables()
    return MirroredStrategy(names, exchange)


def _decorate_keras() -> None:
    """Let Keras 3's optimizers, where there are any, say what gradients are for."""
    if importlib.util.find_spec("keras") is None:
        return
    importlib.import_module("keras")
    install({private.KERAS_ALL_REDUCE: _name_variables})


@wrapping_unconverted
def _name_variables(
    reduce: Callable[..., Any], optimizer: Any, grads_and_vars: Any
) -> Any:
    """Do Keras 3's reduction of gradients, so that it goes to their variables."""
    pairs = list(grads_and_vars)
    strategy = tf.distribute.get_strategy()
    is_replica = not tf.distribute.in_cross_replica_context()
    if not (is_replica and isinstance(strategy, MirroredStrategy)):
        return reduce(optimizer, pairs)
    for _, variable in pairs:
        if not private.is_replicated(variable):
            raise ConfigError(
                f"The variable {variable.name} {variable.shape} was not made under "
                "the strategy, so that its replicas cannot be kept alike; create "
                "the model and the optimizer within `with strategy.scope():`."
            )
    given = [pair for pair in pairs if pair[0] is not None]
    if not given or strategy.exchange is None:
        return reduce(optimizer, pairs)
    # Where XLA compiles replicas do not meet.
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        logging.log_first_n(
            logging.WARNING,
            "In functions compiled by XLA gradients are exchanged in float32, as "
            "TensorFlow does it; compile(jit_compile=False) exchanges them in 16 bits.",
            1,
        )
        return reduce(optimizer, pairs)
    context = tf.distribute.get_replica_context()
    reduced = iter(context.merge_call(_reduce_to_variables, args=(given,)))
    return [(None if g is None else next(reduced), v) for g, v in pairs]


def _reduce_to_variables(strategy: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)


def _note_earlier_variables() -> None:
    """Warn of models made before the strategy, which it does not mirror."""
    # A model that nobody holds any more is not one to warn of.
    gc.collect()
    # Not isinstance: asking a proxy for its class may load what it stands for.
    variables = (v for v in gc.get_objects() if issubclass(type(v), tf.Variable))
    # Those of metrics and the like are scalars.
    weights = (v for v in variables if v.trainable and v.shape.rank != 0)
    earlier = [v for v in weights if not private.is_replicated(v)]
    if not earlier:
        return
    names = ", ".join(f"{v.name} {tuple(v.shape)}" for v in earlier[:_NAMED])
    more = f" and {len(earlier) - _NAMED} more" if len(earlier) > _NAMED else ""
    Code.EARLIER_VARIABLES.warn(
        "Variables were made before the strategy: %s%s. They stay on one device; a "
        "model and its optimizer are to be made within `with strategy.scope():`.",
        names,
        more,
    )
