"""One piece of what a call has to do, and the readings of a call that build it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from grappler_pass.costs.calls import DTYPE_BYTES, OpCall, TensorSpec

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
