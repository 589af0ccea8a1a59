"""What a tensor can be cast from: constants, existing casts, and reads of variables.

Two reads of a variable see the same value if no write can lie between them: every node
that may write the variable runs after both, or before both; then they may share one
cast. A read inside a loop may move in front of it if every write runs after the read.

A read of a ref variable (`VariableV2`) copies nothing, nor does what passes it on:

    variable --> Identity --> Enter --> matmul     (every iteration)
    variable --> AssignAdd                         (every iteration)

So the product multiplies by what the variable holds when the product runs, and a cast
of it is the same only if it is made at that moment.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.types_pb2 import DT_RESOURCE

from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_table import NEXT_ITERATION_OPS
from grappler_pass.graph.op_traits import input_behind
from grappler_pass.graph.type_slots import FLOAT32, attr_of, op_def_of
from grappler_pass.graph.view import Graph, Node, Port, Reader
from grappler_pass.graph.walks import reached

# A chain A -> float32 -> C is A -> C for these A alone: float32 holds all their values.
HELD_BY_FLOAT32 = frozenset(
    types_pb2.DataType.Value(f"DT_{name}")
    for name in "FLOAT HALF BFLOAT16 BOOL INT8 UINT8 INT16 UINT16".split()
)
NUMPY_DTYPES = {
    types_pb2.DT_HALF: np.dtype(np.float16),
    types_pb2.DT_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    types_pb2.DT_FLOAT: np.dtype(np.float32),
}


def is_cast(node: Node) -> bool:
    """Return whether `node` is a rounding Cast, the only kind that fuses."""
    return node.op == "Cast" and not attr_of(node.proto, "Truncate").b


def cast_types(node: Node) -> tuple[int, int]:
    """Return SrcT and DstT of a Cast."""
    return int(node.proto.attr["SrcT"].type), int(node.proto.attr["DstT"].type)


def is_foldable(view: Graph, port: Port) -> bool:
    """Return whether a tensor can be cast before the graph runs: a constant.

    Not so one that its caller relies on, who may feed something else in its place: a
    Session takes any constant for an input.
    """
    node = view.nodes[port.node]
    return node.op == "Const" and node.name not in view.item.untouchable


def before_cast(view: Graph, reads: VariableReads, port: Port) -> tuple[Port, int]:
    """Return the tensor and dtype a float32 port's value can be cast from directly.

    Before   int8 --> cast --> f32 --> cast_down --> matmul(low)
    After    int8 --> cast_down --> matmul(low)

    Not done: through an int32, whose values float32 does not all represent; past a cast
    that its caller relies on, and may feed something else than what it reads; past one
    that waits for more than its value, as what reads it then does; past one that tells
    what a variable held before it is written.
    """
    cast = view.nodes[port.node]
    if not is_cast(cast) or cast.name in view.item.untouchable or cast.controls:
        return port, FLOAT32
    (source,), (dtype, target) = cast.inputs, cast_types(cast)
    if target != FLOAT32 or dtype not in HELD_BY_FLOAT32 or source in reads.refs.ports:
        return port, FLOAT32
    return source, dtype


def is_free_down(view: Graph, reads: VariableReads, port: Port, low_dtype: int) -> bool:
    """Return whether `port` costs nothing to have in the low dtype.

    True of a constant, cast before the graph runs (where the graph is stored, by
    TensorFlow that loads it), and of a tensor that was cast up from the same low dtype.
    """
    if is_foldable(view, port):
        return True
    return before_cast(view, reads, port)[1] == low_dtype


_VARIABLES = table.REF_VARIABLE_OPS | {"TemporaryVariable"}
# What passes a tensor, or a part of it, on without a copy.
_PASSING = table.ALIASING_OPS | frozenset(
    """PlaceholderWithDefault Print RefSelect Slice Split SplitV StridedSlice
    Unpack""".split()
)


class RefReads(NamedTuple):
    """Tensors that are the memory of ref variables which this graph writes.

    Attributes:
      ports: all of them.
      late: data inputs that read such a tensor when it may have been written since it
        was made.
      passing: nodes that pass such a tensor on to one of these inputs.
    """

    ports: frozenset[Port] = frozenset()
    late: frozenset[Reader] = frozenset()
    passing: frozenset[int] = frozenset()

    @classmethod
    def from_view(cls, view: Graph) -> RefReads:
        """Follow every ref variable of `view` to its readers and writers."""
        variables: dict[object, list[Port]] = {}
        for node in view.nodes:
            if node.op in _VARIABLES:
                attr = node.proto.attr
                container, shared_name = (
                    attr[name].s if name in attr else b""
                    for name in ("container", "shared_name")
                )
                key = container, shared_name.decode() or node.name
                variables.setdefault(key, []).append(Port(node.index, 0))
        memories = [_memory(view, ports) for ports in variables.values()]
        memories = [memory for memory in memories if memory.writers]
        if not memories:
            return cls()
        order = Precedence(
            view,
            itertools.chain.from_iterable(
                (*memory.writers, port.node, reader.node)
                for memory in memories
                for port, reader in memory.readers
            ),
        )
        late = frozenset(
            reader
            for memory in memories
            for port, reader in memory.readers
            if _is_late(view, order, port, reader, memory.writers)
        )
        ports = frozenset(port for memory in memories for port in memory.ports)

        def passing_before(inputs: Iterable[Port]) -> list[int]:
            return [p.node for p in inputs if view.nodes[p.node].op in _PASSING]

        passing = reached(
            passing_before(view.nodes[r.node].inputs[r.input] for r in late),
            lambda i: passing_before(p for p in view.nodes[i].inputs if p in ports),
        )
        return cls(ports, late, frozenset(passing))

    def awaited(self, view: Graph, port: Port, reader: Node | None) -> tuple[int, ...]:
        """Return the nodes that a cast of a tensor waits for by control edges.

        TensorFlow moves casts ahead of an Identity and the like, without what that
        waits for: such control inputs become the cast's own. So does what a reader
        waits for that reads the cast alone, and late.
        """
        if port not in self.ports:
            return ()
        awaited: list[int] = []
        node = view.nodes[port.node]
        while node.op in table.VIEW_OPS:
            awaited.extend(node.controls)
            node = view.nodes[node.inputs[0].node]
        if reader is not None:
            awaited.extend(source.node for source in reader.inputs)
            awaited.extend(reader.controls)
        return tuple(dict.fromkeys(i for i in awaited if i != port.node))


def _is_late(
    view: Graph,
    order: Precedence,
    port: Port,
    reader: Reader,
    writers: frozenset[int],
) -> bool:
    """Return whether a reader's tensor may have been written since it was made.

    What enters a loop is read in each iteration, and written in those before.
    """
    enters = view.nodes[port.node].op in table.ENTER_OPS
    made_in = view.loops(port.node)[1 if enters else 0 :]
    for writer in writers - {reader.node}:
        shared = set(view.loops(reader.node)) & set(view.loops(writer))
        is_read_after = not order.surely_before(reader.node, writer)
        is_read_again = not shared.issubset(made_in)
        is_made_after = order.surely_before(writer, port.node)
        if not is_made_after and (is_read_after or is_read_again):
            return True
    return False


class _Memory(NamedTuple):
    """One variable: where its memory is read, and the nodes that write it."""

    ports: frozenset[Port]
    readers: tuple[tuple[Port, Reader], ...]
    writers: frozenset[int]


def _memory(view: Graph, starts: Iterable[Port]) -> _Memory:
    """Follow the memory of a variable to what passes it on, reads and writes it."""
    readers: list[tuple[Port, Reader]] = []
    writers: set[int] = set()

    def passed_on(port: Port) -> Iterator[Port]:
        for reader in view.readers(port):
            readers.append((port, reader))
            node = view.nodes[reader.node]
            if writes := reader.input in _written_inputs(node.op):
                writers.add(node.index)
            if writes or node.op in _PASSING:
                for passed in view.output_ports(node.index):
                    if node.op != "IdentityN" or passed.output == reader.input:
                        yield passed

    ports = frozenset(reached(starts, passed_on))
    return _Memory(ports, tuple(readers), frozenset(writers))


@functools.cache
def _written_inputs(op: str) -> frozenset[int]:
    """Return which inputs of an op are variables that it may write."""
    op_def = op_def_of(op)
    if op_def is None or op in _PASSING or op == "IsVariableInitialized":
        return frozenset()
    return frozenset(i for i, arg in enumerate(op_def.input_arg) if arg.is_ref)


class Precedence:
    """The order among a few watched nodes, by sweeps over the graph.

    Back edges of loops are followed, so two nodes of one loop that reach each other
    run both before and after one another.
    """

    def __init__(self, view: Graph, watched: Iterable[int]) -> None:
        """Find which of the `watched` nodes, by number, lead to which."""
        self._bit = {node: 1 << i for i, node in enumerate(sorted({*watched}))}
        self._masks = [0] * len(view.nodes)
        # Each sweep passes every node's ancestors on, until no back edge brings news.
        news = True
        while news:
            news = False
            for i in view.order:
                node = view.nodes[i]
                mask = self._bit.get(i, 0)
                for source in node.sources:
                    mask |= self._masks[source]
                if mask != self._masks[i]:
                    self._masks[i] = mask
                    news = news or node.op in NEXT_ITERATION_OPS

    def leads_to(self, first: int, second: int) -> bool:
        """Return whether `second` waits for `first`, maybe in an earlier iteration."""
        return bool(self._masks[second] & self._bit[first])

    def surely_before(self, first: int, second: int) -> bool:
        """Return whether `first` runs before `second`, and never after it."""
        return self.leads_to(first, second) and not self.leads_to(second, first)


# Ops that take a handle and do not write the variable.
_HARMLESS = table.READ_OPS | table.LOOK_OPS | {"NoOp"}
_PASS_HANDLE = table.PASSING_OPS - table.MERGE_OPS
# Code outside of the graph, which writes a variable without taking its handle.
_CALLS_OUTSIDE = frozenset({"EagerPyFunc", "PyFunc"})
# What is behind a handle that one of several became.
_ANY = "any variable"
# They update rows in place; from then on TensorFlow copies the variable to read it.
_ROW_UPDATES = ("ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign")


class VariableReads(NamedTuple):
    """Sharing and motion of variable reads.

    Attributes:
      canonical: port of a ReadVariableOp to the port of the first one that surely sees
        the same value; only where the two differ.
      hoists: port of a ReadVariableOp in a loop to the Enter nodes its handle came in
        through, innermost first; only where the read may move out of them.
      copies: ReadVariableOps that copy the whole variable, since this graph updates
        rows of it; that another graph does is not seen.
      refs: reads of ref variables, which are no nodes of their own.
    """

    canonical: Mapping[Port, Port]
    hoists: Mapping[Port, tuple[int, ...]]
    copies: frozenset[int] = frozenset()
    refs: RefReads = dataclasses.field(default_factory=RefReads)

    @classmethod
    def from_view(cls, view: Graph) -> VariableReads:
        """Find what may be shared or moved in `view`."""
        all_reads = _reads_by_variable(view)
        updated = variables_updated_by_rows(view) & all_reads.keys()
        copies = frozenset(read for key in updated for read in all_reads[key])
        refs = RefReads.from_view(view)
        reads = {
            key: [i for i in own if not _may_be_fed(view, view.nodes[i])]
            for key, own in all_reads.items()
            if key != _ANY
        }
        reads = {
            key: own
            for key, own in reads.items()
            if len(own) > 1 or (own and view.frame(own[0]) is not None)
        }
        if not reads:
            return cls({}, {}, copies, refs)
        writers = _writers_by_variable(view, reads.keys())
        outside = [node.index for node in view.nodes if node.op in _CALLS_OUTSIDE]
        watched = itertools.chain(*reads.values(), *writers.values(), outside)
        before = Precedence(view, watched)
        canonical: dict[Port, Port] = {}
        hoists: dict[Port, tuple[int, ...]] = {}
        for key, own in reads.items():
            written_by = writers.get(key, [])
            canonical.update(_share(view, own, written_by, before))
            for read in own:
                loops = set(view.loops(read))
                # No write runs before the read, nor in one of its loops.
                may_move = not any(before.leads_to(i, read) for i in outside) and all(
                    before.surely_before(read, i) and loops.isdisjoint(view.loops(i))
                    for i in written_by
                )
                if may_move and (enters := _enters(view, read)):
                    hoists[Port(read, 0)] = enters
        return cls(canonical, hoists, copies, refs)


def unwritten_reads(view: Graph) -> frozenset[int]:
    """Return the ReadVariableOps of variables that this graph surely does not write."""
    reads = _reads_by_variable(view)
    if _ANY in reads or any(node.op in _CALLS_OUTSIDE for node in view.nodes):
        return frozenset()
    written = _writers_by_variable(view, reads.keys())
    return frozenset(i for key in reads.keys() - written.keys() for i in reads[key])


def reads_unwritten_in_loops(view: Graph) -> frozenset[int]:
    """Return the ReadVariableOps in loops whose variable their loop does not write.

    They read the same in each iteration, and in front of the loop, after all that they
    wait for there. What is written beside the loop may come before it, or after it.
    """
    reads = {
        key: inside
        for key, own in _reads_by_variable(view).items()
        if key != _ANY and (inside := [i for i in own if view.frame(i) is not None])
    }
    written = _writers_by_variable(view, reads.keys()) if reads else {}
    outside = [node.index for node in view.nodes if node.op in _CALLS_OUTSIDE]
    return frozenset(
        i
        for key, own in reads.items()
        for i in own
        if all(
            view.frame(i) not in view.loops(writer)
            for writer in (*written.get(key, ()), *outside)
        )
    )


def variables_updated_by_rows(view: Graph) -> frozenset[object]:
    """Return the variables of which this graph updates rows, by `variable_of`."""
    return frozenset(
        variable_of(view, port)
        for node in view.nodes
        if node.op.startswith(_ROW_UPDATES)
        for port in node.inputs
    )


def variable_of(view: Graph, port: Port) -> object:
    """Return a key of the variable behind a handle."""
    node = view.nodes[port.node]
    while node.op in _PASS_HANDLE:
        port = node.inputs[input_behind(node.op, port.output)]
        node = view.nodes[port.node]
    if node.op in table.MERGE_OPS and attr_of(node.proto, "T").type == DT_RESOURCE:
        return _ANY
    if node.op == "VarHandleOp" and (name := attr_of(node.proto, "shared_name").s):
        return attr_of(node.proto, "container").s, name
    return port


def _may_be_fed(view: Graph, read: Node) -> bool:
    """Return whether the caller may replace what is read: not in a function's body.

    There variables are arguments, and a read that the caller relies on is an effect.
    """
    handle = view.source(read.inputs[0], _PASS_HANDLE)
    return read.name in view.item.untouchable and handle.op != "_Arg"


def _reads_by_variable(view: Graph) -> dict[object, list[int]]:
    reads: dict[object, list[int]] = {}
    for i in view.order:
        node = view.nodes[i]
        if node.op == "ReadVariableOp":
            reads.setdefault(variable_of(view, node.inputs[0]), []).append(i)
    return reads


def _writers_by_variable(
    view: Graph, keys: Iterable[object]
) -> dict[object, list[int]]:
    """Return the nodes that may write each variable; unknown ops are taken to."""
    wanted = set(keys)
    writers: dict[object, list[int]] = {}
    for node in view.nodes:
        if node.op in _HARMLESS or node.op in _PASS_HANDLE:
            continue
        for port in node.inputs:
            key = variable_of(view, port)
            for written in wanted if key == _ANY else wanted & {key}:
                writers.setdefault(written, []).append(node.index)
    return writers


def _share(
    view: Graph, reads: list[int], writers: list[int], before: Precedence
) -> dict[Port, Port]:
    """Map each read to an earlier one of the same value and the same liveness."""
    leaders: dict[object, list[int]] = {}
    canonical: dict[Port, Port] = {}
    for read in reads:
        node = view.nodes[read]
        # The same handle port and controls: one cannot be dead while the other lives.
        group = leaders.setdefault((node.inputs[0], frozenset(node.controls)), [])
        for leader in group:
            if all(_not_between(leader, read, w, before) for w in writers):
                canonical[Port(read, 0)] = Port(leader, 0)
                break
        else:
            group.append(read)
    return canonical


def _not_between(first: int, second: int, writer: int, before: Precedence) -> bool:
    reads = (first, second)
    after_both = all(before.surely_before(read, writer) for read in reads)
    before_both = all(before.surely_before(writer, read) for read in reads)
    return after_both or before_both


def _enters(view: Graph, read: int) -> tuple[int, ...]:
    """Return the loop-invariant Enter nodes between a read and its variable."""
    enters: list[int] = []
    source = view.nodes[view.nodes[read].inputs[0].node]
    while source.op in ("Identity", *table.ENTER_OPS):
        if source.op in table.ENTER_OPS:
            if not attr_of(source.proto, "is_constant").b:
                return ()
            enters.append(source.index)
        source = view.nodes[source.inputs[0].node]
    return tuple(enters)
