"""The words of pricing: a tensor's shape, a call of an op, and its price.

Decides nothing. The values here know neither TensorFlow's runtime nor a graph, so that
the same call can be priced for a device that is not present.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

UNKNOWN_BATCH = 32
UNKNOWN_DIMENSION = 128
UNKNOWN_SHAPE = (UNKNOWN_BATCH, UNKNOWN_DIMENSION)

DTYPE_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "resource": 0,
    "variant": 0,
    "string": 0,
}
FLOATING = frozenset({"float16", "bfloat16", "float32"})

# The attributes that change a price.
PRICED_ATTRS = (
    "transpose_a",
    "transpose_b",
    "adj_x",
    "adj_y",
    "strides",
    "data_format",
    "fused_ops",
    "is_training",
    "equation",
    "ksize",
    "rnn_mode",
    "direction",
    "time_major",
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
    given = node_def.attr
    # Reading an absent key would create it.
    return {name: _plain(given[name]) for name in PRICED_ATTRS if name in given}


def _plain(value: Any) -> object:
    kind = value.WhichOneof("value")
    if kind == "list":
        lists = (value.list.i, value.list.s, value.list.f, value.list.b)
        return next((tuple(items) for items in lists if items), ())
    if kind in ("i", "f", "b", "s", "type"):
        return getattr(value, kind)
    return None
