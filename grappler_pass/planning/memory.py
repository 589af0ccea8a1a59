"""Peak bytes of live activations that a graph needs, before and after a plan.

A tensor lives from the node that writes it to its last reader, in the order of the
graph's view. Views share the tensor they look at, an op that writes what it reads may
reuse a tensor that has no other reader, and a cast copies. Variables, constants and
arguments are left out, and so are constants that are cast beforehand; what is cast as
the graph runs is not. A weight is read, and so cast, as a step begins; what is kept
between calls lives all the time. A loop counts with one iteration, and with what its
lists hold after all of them. Sizes that are unknown are guessed as for prices. Not
counted are what kernels need for themselves, a variable's copy where it is written
while its old value is still read, and what the allocator does not fill.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from grappler_pass.costs.calls import DTYPE_BYTES, TensorSpec
from grappler_pass.costs.op_classes import ELEMENTWISE
from grappler_pass.eligibility.reads import is_foldable
from grappler_pass.graph import op_table as table
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, dtype_name
from grappler_pass.graph.view import Node, Port, Reader
from grappler_pass.planning.draft import Conversion, Draft

_WEIGHTS = (
    table.CONSTANT_OPS | table.INPUT_OPS | table.VARIABLE_OPS | {"ReadVariableOp"}
)
_READS = table.REF_VARIABLE_OPS | {"ReadVariableOp"}
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


class Peak(NamedTuple):
    """The most bytes that are alive at once, and which of them copy weights.

    Attributes:
      size: of all activations.
      weights: of it, 16-bit copies of variables and of what is computed of them alone.
    """

    size: int
    weights: int


@dataclasses.dataclass(slots=True)
class _Buffer:
    """Bytes that are held from one moment to another, both included.

    `runs` is how often a step writes it; `is_weight` whether it copies a variable.
    """

    size: int
    birth: int
    death: int
    runs: float
    is_weight: bool = False


def peak_of(draft: Draft) -> Peak:
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
        self._of_variables: set[Port] = set()
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
        outputs = range(self._slots.output_count(node.index))
        varying = {
            port
            for port in node.inputs
            if self._view.nodes[port.node].op not in table.CONSTANT_OPS
        }
        # What depends on variables alone.
        if node.op in _READS or (varying and varying <= self._of_variables):
            self._of_variables.update(Port(node.index, output) for output in outputs)
        if node.op in _WEIGHTS:
            return
        end = self._last if node.name in self._view.item.fetch else moment
        for output in outputs:
            self._write(node, output, read, end)
        if node.op not in table.PUSHED_INPUT:
            return
        first = read[table.PUSHED_INPUT[node.op]]
        if first is not None:
            # A list holds as many elements as the loop pushes, as long as it lives.
            # What a loop pushes without writing it anew is one tensor, kept once.
            others = min(self._view.weight(node.index), first.runs) - 1.0
            buffer = self._new(int(first.size * others), moment, moment, node.index)
            self._kept.append((first, buffer, read[0]))

    def peak(self) -> Peak:
        """Return the most bytes, once every node has run."""
        for first, others, holder in self._kept:
            others.death = max(others.birth, holder.death if holder else 0)
            first.death = max(first.death, others.death)
        born, dying = [0] * (self._last + 1), [0] * (self._last + 1)
        for buffer in self._buffers:
            born[buffer.birth] += buffer.size
            dying[buffer.death] += buffer.size
        # What is written over a tensor of its size without another reader.
        reused = {
            moment: size
            for moment, (read, size) in self._reusable.items()
            if any(b is not None and (b.death, b.size) == (moment, size) for b in read)
        }
        alive = most = at = 0
        for moment in range(self._last + 1):
            alive += born[moment]
            if alive - reused.get(moment, 0) > most:
                most, at = alive - reused.get(moment, 0), moment
            alive -= dying[moment]
        weights = (b for b in self._buffers if b.is_weight and b.birth <= at <= b.death)
        return Peak(most, sum(buffer.size for buffer in weights))

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
        begin = end = after = self._written_at[source.node] + 1
        if read is not None:
            read.death = max(read.death, after)
        size = self._elements(source) * _bytes_of(conversion.target_dtype)
        hoist = conversion.hoist
        node = self._view.nodes[hoist[-1]].inputs[0].node if hoist else source.node
        if conversion.port in self._draft.kept:
            begin, end = 0, self._last
        buffer = self._new(size, begin, end, node)
        is_low = conversion.target_dtype != FLOAT32
        buffer.is_weight = is_low and source in self._of_variables
        return buffer

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
        source = node.inputs[0] if node.op in _SPREADS else port
        slot = self._slots.output_slot(*source)
        is_low = slot != NO_SLOT and self._draft.low[slot]
        width = 2 if is_low else _bytes_of(self._slots.output_dtype(*source))
        size = width * self._elements(source) if width else 0
        moment = self._written_at[node.index]
        self._of_port[port] = self._new(size, moment, end, node.index)
        if node.op in _REUSES:
            self._reusable[moment] = (read, size)

    def _new(self, size: int, birth: int, death: int, node: int) -> _Buffer:
        buffer = _Buffer(size, birth, death, self._view.weight(node))
        self._buffers.append(buffer)
        return buffer

    def _elements(self, port: Port) -> int:
        shape = known_shape(self._draft.shapes, self._view, port)
        return TensorSpec(shape, "").elements


def _bytes_of(dtype: int) -> int:
    return DTYPE_BYTES.get(dtype_name(dtype), 4) if dtype else 0
