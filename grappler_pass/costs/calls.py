"""The words of pricing: a tensor's shape, a call of an op, its work, and its price.

Decides nothing. The values here know neither TensorFlow's runtime nor a graph, so that
the same call can be priced for a device that is not present.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

UNKNOWN_BATCH = 32
UNKNOWN_DIMENSION = 128
UNKNOWN_SHAPE = (UNKNOWN_BATCH, UNKNOWN_DIMENSION)

DTYPE_BYTES = {
    name: size
    for size, names in {
        0: "resource string variant",
        1: "bool int8 uint8",
        2: "bfloat16 float16 int16 uint16",
        4: "float32 int32 uint32 tf32",
        8: "complex64 float64 int64 uint64",
        16: "complex128",
    }.items()
    for name in names.split()
}
FLOATING = frozenset({"float16", "bfloat16", "float32"})

# The attributes that change a price.
PRICED_ATTRS = tuple(
    """
    transpose_a transpose_b adj_x adj_y strides data_format fused_ops is_training
    equation ksize rnn_mode direction time_major
    """.split()
)


class TensorSpec(NamedTuple):
    """Shape and TensorFlow dtype name of one tensor.

    A dimension of None is a guess when priced: ``UNKNOWN_BATCH`` if it comes first,
    ``UNKNOWN_DIMENSION`` elsewhere; a shape of None is ``UNKNOWN_SHAPE``.
    """

    shape: tuple[int | None, ...] | None
    dtype: str

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the shape with each unknown replaced by its guess."""
        shape = self.shape
        if shape is None:
            return UNKNOWN_SHAPE
        if None not in shape and -1 not in shape:
            return cast("tuple[int, ...]", shape)
        return tuple(
            (UNKNOWN_DIMENSION if axis else UNKNOWN_BATCH)
            if size is None or size < 0
            else size
            for axis, size in enumerate(shape)
        )

    @property
    def elements(self) -> int:
        """Return the number of elements, guesses included."""
        return math.prod(self.dims)

    def bytes_as(self, dtype: str) -> int:
        """Return the size in bytes when floating values are held in ``dtype``."""
        name = dtype if self.dtype in FLOATING else self.dtype
        return self.elements * DTYPE_BYTES.get(name, 4)


class OpCall(NamedTuple):
    """One node as pricing sees it.

    ``attrs`` holds plain Python values (int, float, bool, str or bytes, and sequences
    of them), such as ``attrs_from_node_def`` returns; ``inputs`` leaves control inputs
    out.
    """

    op: str
    attrs: Mapping[str, object]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Price(NamedTuple):
    """Seconds per execution, where they come from, and how sure they are.

    Attributes:
        seconds: of one execution.
        source: "learned" (a profile's, corrected by what steps have taught),
            "profile" or "roofline".
        error: standard deviation of the logarithm of the seconds, so 0.1 means that
            they are right within about 10 %.
    """

    seconds: float
    source: str
    error: float = 0.0


def attrs_from_node_def(node_def: Any) -> dict[str, object]:
    """Return the attributes that change a price, as plain values; writes nothing."""
    attrs: dict[str, object] = {}
    for name in PRICED_ATTRS:
        # Reading an absent key would create it.
        if name in node_def.attr:
            value = node_def.attr[name]
            kind = value.WhichOneof("value")
            attrs[name] = None
            if kind == "list":
                lists = (value.list.i, value.list.s, value.list.f, value.list.b)
                attrs[name] = next((tuple(items) for items in lists if items), ())
            elif kind in ("i", "f", "b", "s", "type"):
                attrs[name] = getattr(value, kind)
    return attrs


Dims = tuple[int, ...]

# What one node writes is still in the cache for the next if it is smaller than this: a
# core's own cache, and the share of the common one that other tensors leave it.
CACHED_BYTES = 4 * 2**20


class Product(NamedTuple):
    """The matrix products that a piece of work comes down to.

    Args:
        batch: how many of them, each with operands of its own.
        m: rows of the left operand and of the result.
        n: columns of the right operand and of the result.
        k: what is summed over.
        row_lengths: of the operands and the result as they lie in memory.
        is_convolution: computed as a product without its operands being laid out.
        has_short_cut: a 3 x 3 convolution with stride 1, which a fast algorithm
            computes with fewer multiplications.
    """

    batch: int
    m: int
    n: int
    k: int
    row_lengths: Dims = ()
    is_convolution: bool = False
    has_short_cut: bool = False


class Work(NamedTuple):
    """One piece of a call.

    Args:
        op_class: row of ``op_classes``.
        point: a size along each axis of the class.
        flops: multiplications and additions, as usually counted.
        bytes_moved: read and written.
        scale: factor on the measured seconds, for work like the measured but larger.
        product: what a matrix product or convolution multiplies.
        times: how often all this is done, one time after the other.
    """

    op_class: str
    point: tuple[float, ...]
    flops: float
    bytes_moved: float
    scale: float = 1.0
    product: Product | None = None
    times: float = 1.0


def bytes_of(call: OpCall, dtype: str) -> float:
    """Return the bytes that ``call`` reads and writes."""
    return float(sum(spec.bytes_as(dtype) for spec in call.inputs + call.outputs))


def elementwise(op_class: str, elements: int, dtype: str, tensors: int = 2) -> Work:
    """Return work at one place of a class measured by elements."""
    size = float(elements)
    return Work(op_class, (size,), size, size * tensors * DTYPE_BYTES[dtype])


def by_elements(op_class: str, call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the work of a call whose class is measured by elements written."""
    elements = float(max(spec.elements for spec in call.inputs + call.outputs))
    return (Work(op_class, (elements,), elements, bytes_of(call, dtype)),)


def by_rows(op_class: str, elements: int, columns: int, dtype: str) -> Work:
    """Return work at one place of a class measured by rows and columns."""
    rows = max(elements // max(columns, 1), 1)
    moved = 2.0 * elements * DTYPE_BYTES[dtype]
    return Work(op_class, (rows, columns), float(elements), moved)


def dims_of(spec: TensorSpec, rank: int) -> Dims:
    """Return the shape, or raise ValueError where its rank is another."""
    dims = spec.dims
    if len(dims) != rank:
        raise ValueError(f"rank {len(dims)} where {rank} is needed")
    return dims


def text(value: object) -> str:
    """Return an attribute that TensorFlow holds as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value or "")


def texts(value: object) -> tuple[str, ...]:
    """Return an attribute that TensorFlow holds as a list of bytes."""
    return tuple(map(text, value)) if isinstance(value, Iterable) else ()


def integers(value: object) -> Dims:
    """Return an attribute that is a list of numbers; empty where absent."""
    return tuple(map(int, value)) if isinstance(value, Sequence) else ()


def channel_axis(call: OpCall) -> int:
    """Return the axis of channels that the layout names, -1 by default."""
    layout = text(call.attrs.get("data_format")) or "NHWC"
    return 1 if layout.startswith(("NC", "CHANNELS_FIRST")) else -1
