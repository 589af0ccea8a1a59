"""Where casts are needed between colors, and which of them need no node.

A chain A -> B -> C is A -> C only if B represents every value of A; if A is C too, the
pair disappears. `represents` decides, for every rule here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
from tensorflow.core.framework import types_pb2

from grappler_pass.graph import GraphView, Node, Port, Reader
from grappler_pass.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.variable_reads import VariableReads


class _Format(NamedTuple):
    """Significant bits, exponents of the smallest and largest finite value, sign."""

    significand: int
    smallest: int
    largest: int
    signed: bool = True


# The smallest exponent is that of the smallest subnormal.
_FORMATS = {
    types_pb2.DT_HALF: _Format(11, -24, 15),
    types_pb2.DT_BFLOAT16: _Format(8, -133, 127),
    types_pb2.DT_FLOAT: _Format(24, -149, 127),
    types_pb2.DT_DOUBLE: _Format(53, -1074, 1023),
    types_pb2.DT_BOOL: _Format(1, 0, 0, signed=False),
    types_pb2.DT_INT8: _Format(7, 0, 7),
    types_pb2.DT_UINT8: _Format(8, 0, 7, signed=False),
    types_pb2.DT_INT16: _Format(15, 0, 15),
    types_pb2.DT_UINT16: _Format(16, 0, 15, signed=False),
    types_pb2.DT_INT32: _Format(31, 0, 31),
    types_pb2.DT_UINT32: _Format(32, 0, 31, signed=False),
    types_pb2.DT_INT64: _Format(63, 0, 63),
    types_pb2.DT_UINT64: _Format(64, 0, 63, signed=False),
}
_FLOATS = frozenset(
    {
        types_pb2.DT_HALF,
        types_pb2.DT_BFLOAT16,
        types_pb2.DT_FLOAT,
        types_pb2.DT_DOUBLE,
    }
)
# In the place of a reader's number, where a cast is not for that reader alone.
_SHARED = -1
NUMPY_DTYPES = {
    types_pb2.DT_HALF: np.dtype(np.float16),
    types_pb2.DT_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    types_pb2.DT_FLOAT: np.dtype(np.float32),
}


def represents(wide: int, narrow: int) -> bool:
    """Tell whether `wide` holds every value of `narrow` exactly (DataType enums).

    Integers count as representable in a float of enough significant bits and range;
    nothing but itself is known to hold a type outside the table.
    """
    if wide == narrow:
        return True
    if wide not in _FORMATS or narrow not in _FORMATS:
        return False
    if narrow in _FLOATS and wide not in _FLOATS:
        return False
    outer, inner = _FORMATS[wide], _FORMATS[narrow]
    return (
        outer.significand >= inner.significand
        and outer.smallest <= inner.smallest
        and outer.largest >= inner.largest
        and outer.signed >= inner.signed
    )


def is_cast(node: Node) -> bool:
    """Tell whether `node` is a rounding Cast, the only kind that fuses."""
    truncates = "Truncate" in node.proto.attr and node.proto.attr["Truncate"].b
    return node.op == "Cast" and not truncates


def source_dtype(node: Node) -> int:
    """Return SrcT of a Cast."""
    return int(node.proto.attr["SrcT"].type)


def target_dtype(node: Node) -> int:
    """Return DstT of a Cast."""
    return int(node.proto.attr["DstT"].type)


@dataclasses.dataclass(frozen=True)
class Conversion:
    """One tensor needed in another dtype by some of its readers.

    Attributes:
      port: the tensor; for a down conversion always float32 as given.
      source: where the converted value is taken from: `port`, or what an existing cast
        in front of it reads.
      source_dtype: DataType of `source` after the rewrite.
      target_dtype: DataType the readers need.
      readers: the data inputs to be redirected.
      device: where a cast runs: with the producer on the way down, with the reader on
        the way up, so that 16 bits cross the wire.
      hoist: for a variable read inside loops, the Enter nodes its handle came in
        through, innermost first; the read and its cast move outside of them.
      waits_for: nodes, by number, that run before the cast beside its source, which is
        a ref variable's memory.
      folds: whether it is made beforehand, from a constant; no cast is needed.
    """

    port: Port
    source: Port
    source_dtype: int
    target_dtype: int
    readers: tuple[Reader, ...]
    device: str
    hoist: tuple[int, ...] = ()
    folds: bool = False
    waits_for: tuple[int, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Tell whether the readers can simply read `source`."""
        return self.source_dtype == self.target_dtype

    @property
    def is_cast(self) -> bool:
        """Tell whether a cast is put in for it."""
        return not self.is_identity and not self.folds


@dataclasses.dataclass(frozen=True)
class CastPlan:
    """What a rewrite does at every edge whose ends differ in color.

    Attributes:
      conversions: a new tensor each (or a redirection), at most one per port, target
        and device.
      absorbed: existing Casts that read a low tensor directly from now on.
    """

    conversions: tuple[Conversion, ...]
    absorbed: tuple[int, ...]


def plan_casts(
    view: GraphView,
    slots: SlotTable,
    low: Sequence[bool],
    low_dtype: int,
    reads: VariableReads,
    *,
    fold_constants: bool = True,
) -> CastPlan:
    """Find the conversions and absorptions an assignment needs.

    Before   matmul(low) --> exp(f32), matmul(low) --> log(f32)
    After    matmul(low) --> cast_up --> exp(f32), log(f32)

    Not done: control edges never get a cast.

    Args:
      view: the graph.
      slots: of `view`.
      low: for every slot whether it goes low.
      low_dtype: DataType of the low side.
      reads: which variable reads share a cast, and which leave their loop.
      fold_constants: whether constants are rounded beforehand, or by a cast when the
        graph runs.
    """
    groups: dict[tuple[Port, int, str, int], list[Reader]] = {}
    absorbed: list[int] = []
    for node in view.nodes:
        for position, port in enumerate(node.inputs):
            needed = _crossing(slots, low, low_dtype, node.index, position, port)
            if needed is None:
                continue
            preserved = node.name in view.item.untouchable
            if needed == FLOAT32 and is_cast(node) and not preserved:
                absorbed.append(node.index)
                continue
            producer = view.nodes[port.node]
            device = node.device if needed == FLOAT32 else producer.device
            shared = reads.canonical.get(port, port) if needed == low_dtype else port
            reader = Reader(node.index, position)
            alone = node.index if reader in reads.refs.late else _SHARED
            groups.setdefault((shared, needed, device, alone), []).append(reader)
    conversions = tuple(
        _conversion(view, reads, key, tuple(readers), low_dtype, fold_constants)
        for key, readers in groups.items()
    )
    return CastPlan(conversions, tuple(absorbed))


def _crossing(
    slots: SlotTable,
    low: Sequence[bool],
    low_dtype: int,
    node: int,
    position: int,
    port: Port,
) -> int | None:
    """Return the dtype an input needs if its producer's will differ, else None."""
    producer = slots.output_slot(port.node, port.output)
    reader = slots.input_slot(node, position)
    producer_low = producer != NO_SLOT and low[producer]
    reader_low = reader != NO_SLOT and low[reader]
    if producer_low == reader_low:
        return None
    return low_dtype if reader_low else FLOAT32


def _conversion(
    view: GraphView,
    reads: VariableReads,
    key: tuple[Port, int, str, int],
    readers: tuple[Reader, ...],
    low_dtype: int,
    fold_constants: bool,
) -> Conversion:
    port, needed, device, alone = key
    if needed == FLOAT32:
        return Conversion(port, port, low_dtype, FLOAT32, readers, device)
    source, dtype = before_cast(view, reads, port)
    reader = None if alone == _SHARED else view.nodes[alone]
    return Conversion(
        port,
        source,
        dtype,
        needed,
        readers,
        device,
        hoist=reads.hoists.get(port, ()),
        folds=fold_constants and is_foldable(view, port),
        waits_for=reads.refs.awaited(view, port, reader),
    )


def is_foldable(view: GraphView, port: Port) -> bool:
    """Tell whether a tensor can be cast before the graph runs: a constant.

    Not so one that its caller relies on, who may feed something else in its place: a
    Session takes any constant for an input.
    """
    node = view.nodes[port.node]
    return node.op == "Const" and node.name not in view.item.untouchable


def before_cast(view: GraphView, reads: VariableReads, port: Port) -> tuple[Port, int]:
    """Return the tensor and dtype a float32 port's value can be cast from directly.

    Before   int8 --> cast --> f32 --> cast_down --> matmul(low)
    After    int8 --> cast_down --> matmul(low)

    Not done: through an int32, whose values float32 does not all represent; past a cast
    that its caller relies on, and may feed something else than what it reads; past one
    that waits for more than its value, as what reads it then does; past one that tells
    what a variable held before it is written.
    """
    cast = view.nodes[port.node]
    preserved = cast.name in view.item.untouchable
    if not is_cast(cast) or target_dtype(cast) != FLOAT32 or preserved or cast.controls:
        return port, FLOAT32
    (source,), dtype = cast.inputs, source_dtype(cast)
    if not represents(FLOAT32, dtype) or source in reads.refs.ports:
        return port, FLOAT32
    return source, dtype


def is_free_down(
    view: GraphView, reads: VariableReads, port: Port, low_dtype: int
) -> bool:
    """Tell whether `port` costs nothing to have in the low dtype.

    True of a constant, cast before the graph runs (where the graph is stored, by
    TensorFlow that loads it), and of a tensor that was cast up from the same low dtype.
    """
    if is_foldable(view, port):
        return True
    return before_cast(view, reads, port)[1] == low_dtype
