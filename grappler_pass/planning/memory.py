"""Peak bytes of live activations that a graph needs, before and after a plan.

A tensor lives from the node that writes it to its last reader, in the order of the
graph's view. Views share the tensor they look at, an op that writes what it reads may
reuse a tensor nobody else wants, and a cast copies. Variables, constants and arguments
are left out, and so are constants that are cast beforehand; what is cast as the graph
runs is not. A loop counts with one iteration, and with what its lists hold after all of
them. Sizes that are unknown are guessed as for prices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grappler_pass.costs.calls import DTYPE_BYTES, TensorSpec
from grappler_pass.costs.work.op_classes import ELEMENTWISE
from grappler_pass.eligibility.existing_casts import is_foldable
from grappler_pass.graph import op_table as table
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import NO_SLOT, dtype_name
from grappler_pass.graph.view import Node, Port, Reader
from grappler_pass.planning.casts import Conversion
from grappler_pass.planning.draft import Draft

_WEIGHTS = (
    table.CONSTANT_OPS | table.INPUT_OPS | table.VARIABLE_OPS | {"ReadVariableOp"}
)
# What these write is what they read, or a part of it: output i of input i for
# IdentityN, else of the first.
_VIEWS = (
    table.ALIASING_OPS
    | table.EXCHANGE_OPS
    | table.POPPED_OUTPUT.keys()
    | {"TensorArrayGradV3", "TensorListPushBack", "TensorListSetItem"}
)
_SPREADS = frozenset({"TensorListFromTensor", "TensorListSplit"})
_REUSES = frozenset({*ELEMENTWISE, "AddN", "BiasAdd", "Softmax", "LogSoftmax"})


@dataclasses.dataclass(slots=True)
class _Buffer:
    """Bytes that are held from one moment to another, both included.

    `runs` is how often a step writes it.
    """

    size: int
    birth: int
    death: int
    runs: float


def peak_bytes(draft: Draft) -> int:
    """Return the most bytes of activations that are alive at once.

    Of a draft whose slots are colored and casts are planned.
    """
    liveness = _Liveness(draft)
    for moment, index in enumerate(draft.view.order):
        liveness.run(draft.view.nodes[index], 2 * moment)
    return liveness.peak()


class _Liveness:
    """Buffers of one graph; node number k of the order runs at moment 2 k.

    A cast runs right after the node that it reads from, at the odd moment in between.
    """

    def __init__(self, draft: Draft) -> None:
        self._view, self._slots, self._draft = draft.view, draft.slots, draft
        self._conversions = draft.casts.conversions
        self._cast_of = {
            reader: number
            for number, conversion in enumerate(self._conversions)
            for reader in conversion.readers
        }
        self._last = 2 * len(self._view.order)
        self._buffers: list[_Buffer] = []
        self._of_port: dict[Port, _Buffer | None] = {}
        self._of_cast: dict[int, _Buffer | None] = {}
        self._written_at: dict[int, int] = {}
        # First element pushed, the others, the list.
        self._kept: list[tuple[_Buffer, _Buffer, _Buffer | None]] = []
        # By the moment, what may be written over and the bytes that are written.
        self._reusable: dict[int, tuple[Sequence[_Buffer | None], int]] = {}

    def run(self, node: Node, moment: int) -> None:
        """Follow what `node` reads and writes at its moment."""
        self._written_at[node.index] = moment
        read = [self._read(node, position) for position in range(len(node.inputs))]
        for buffer in read:
            if buffer is not None:
                end = self._last if node.op in table.RESULT_OPS else moment
                buffer.death = max(buffer.death, end)
        if node.op in _WEIGHTS:
            return
        end = self._last if node.name in self._view.item.fetch else moment
        for output in range(self._slots.output_count(node.index)):
            self._write(node, output, read, end)
        if node.op in table.PUSHED_INPUT:
            self._keep(node, read)

    def peak(self) -> int:
        """Return the most bytes, once every node has run."""
        for first, others, holder in self._kept:
            others.death = max(others.birth, holder.death if holder else 0)
            first.death = max(first.death, others.death)
        born, dying = [0] * (self._last + 1), [0] * (self._last + 1)
        for buffer in self._buffers:
            born[buffer.birth] += buffer.size
            dying[buffer.death] += buffer.size
        reused = {moment: self._reused(moment) for moment in self._reusable}
        alive = most = 0
        for moment in range(self._last + 1):
            alive += born[moment]
            most = max(most, alive - reused.get(moment, 0))
            alive -= dying[moment]
        return most

    def _read(self, node: Node, position: int) -> _Buffer | None:
        """Return the buffer of an input; None for a weight's, or around a loop."""
        number = self._cast_of.get(Reader(node.index, position))
        if number is None:
            return self._of_port.get(node.inputs[position])
        if number not in self._of_cast:
            self._of_cast[number] = self._cast(self._conversions[number])
        return self._of_cast[number]

    def _cast(self, conversion: Conversion) -> _Buffer | None:
        source = conversion.source
        read = self._of_port.get(source)
        if conversion.is_identity:
            return read
        if is_foldable(self._view, conversion.port):
            return None
        after = self._written_at[source.node] + 1
        if read is not None:
            read.death = max(read.death, after)
        size = self._elements(source) * _bytes_of(conversion.target_dtype)
        hoist = conversion.hoist
        node = self._view.nodes[hoist[-1]].inputs[0].node if hoist else source.node
        return self._new(size, after, after, node)

    def _write(
        self, node: Node, output: int, read: Sequence[_Buffer | None], end: int
    ) -> None:
        port = Port(node.index, output)
        if node.op in _VIEWS and read:
            # What comes around a loop into a Merge is not known yet.
            first = next((buffer for buffer in read if buffer is not None), None)
            seen = read[output] if node.op == "IdentityN" else first
            if seen is not None:
                seen.death = max(seen.death, end)
            self._of_port[port] = seen
            return
        spread = node.op in _SPREADS
        size = self._bytes(node.inputs[0] if spread else port)
        moment = self._written_at[node.index]
        self._of_port[port] = self._new(size, moment, end, node.index)
        if node.op in _REUSES:
            self._reusable[moment] = (read, size)

    def _new(self, size: int, birth: int, death: int, node: int) -> _Buffer:
        buffer = _Buffer(size, birth, death, self._view.weight(node))
        self._buffers.append(buffer)
        return buffer

    def _keep(self, node: Node, read: Sequence[_Buffer | None]) -> None:
        """Hold as many elements as the loop pushes, as long as the list lives."""
        first = read[table.PUSHED_INPUT[node.op]]
        if first is None:
            return
        # What a loop pushes without writing it anew is one tensor, kept once.
        others = min(self._view.weight(node.index), first.runs) - 1.0
        moment = self._written_at[node.index]
        size = int(first.size * others)
        buffer = self._new(size, moment, moment, node.index)
        self._kept.append((first, buffer, read[0]))

    def _reused(self, moment: int) -> int:
        """Return the bytes that are written over what nobody else will read."""
        read, size = self._reusable[moment]
        last = (b for b in read if b is not None and b.death == moment)
        return size if any(buffer.size == size for buffer in last) else 0

    def _elements(self, port: Port) -> int:
        shape = known_shape(self._draft.shapes, self._view, port)
        return TensorSpec(shape, "").elements

    def _bytes(self, port: Port) -> int:
        slot = self._slots.output_slot(*port)
        is_low = slot != NO_SLOT and self._draft.low[slot]
        size = 2 if is_low else _bytes_of(self._slots.output_dtype(*port))
        return size * self._elements(port) if size else 0


def _bytes_of(dtype: int) -> int:
    return DTYPE_BYTES.get(dtype_name(dtype), 4) if dtype else 0
