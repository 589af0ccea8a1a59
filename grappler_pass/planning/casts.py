"""Where casts are needed between colors, and which of them need no node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grappler_pass.eligibility.reads import before_cast, is_cast, is_foldable
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT
from grappler_pass.graph.view import Port, Reader

if TYPE_CHECKING:
    from grappler_pass.planning.draft import Draft

# In the place of a reader's number, where a cast is not for that reader alone.
_SHARED = -1


class Conversion(NamedTuple):
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
        """Return whether the readers can simply read `source`."""
        return self.source_dtype == self.target_dtype

    @property
    def is_cast(self) -> bool:
        """Return whether a cast is put in for it."""
        return not self.is_identity and not self.folds


class CastPlan(NamedTuple):
    """What a rewrite does at every edge whose ends differ in color.

    Attributes:
      conversions: a new tensor each (or a redirection), at most one per port, target
        and device.
      absorbed: existing Casts that read a low tensor directly from now on.
    """

    conversions: tuple[Conversion, ...] = ()
    absorbed: tuple[int, ...] = ()


def plan_casts(draft: Draft) -> CastPlan:
    """Find the conversions and absorptions that the colors of a draft need.

    Before   matmul(low) --> exp(f32), matmul(low) --> log(f32)
    After    matmul(low) --> cast_up --> exp(f32), log(f32)

    Constants are rounded beforehand, or by a cast when the graph runs.

    Not done: control edges never get a cast.
    """
    if not any(draft.low):
        return CastPlan()
    view, slots, reads = draft.view, draft.slots, draft.reads
    low_dtype = draft.low_dtype

    def is_low(slot: int) -> bool:
        return slot != NO_SLOT and draft.low[slot]

    groups: dict[tuple[Port, int, str, int], list[Reader]] = {}
    absorbed: list[int] = []
    for node in view.nodes:
        for position, port in enumerate(node.inputs):
            reads_low = is_low(slots.input_slot(node.index, position))
            if is_low(slots.output_slot(*port)) == reads_low:
                continue
            needed = low_dtype if reads_low else FLOAT32
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
    conversions = (
        _conversion(draft, key, tuple(readers)) for key, readers in groups.items()
    )
    return CastPlan(tuple(conversions), tuple(absorbed))


def _conversion(
    draft: Draft, key: tuple[Port, int, str, int], readers: tuple[Reader, ...]
) -> Conversion:
    view, reads = draft.view, draft.reads
    port, needed, device, alone = key
    if needed == FLOAT32:
        return Conversion(port, port, draft.low_dtype, FLOAT32, readers, device)
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
        folds=draft.settings.fold_constants and is_foldable(view, port),
        waits_for=reads.refs.awaited(view, port, reader),
    )
