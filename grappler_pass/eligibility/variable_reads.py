"""Which reads of a variable may share one cast, and which may leave their loop.

Two reads see the same value if no write can lie between them: every node that may
write the variable runs after both, or before both. A read inside a loop may move in
front of it if every write runs after the read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tensorflow.core.framework.types_pb2 import DT_RESOURCE

from grappler_pass.eligibility.ref_variables import Precedence, RefReads
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_traits import input_behind
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import GraphView, Port

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
    def from_view(cls, view: GraphView) -> VariableReads:
        """Find what may be shared or moved in `view`."""
        all_reads = _reads_by_variable(view)
        updated = variables_updated_by_rows(view) & all_reads.keys()
        copies = frozenset(read for key in updated for read in all_reads[key])
        refs = RefReads.from_view(view)
        reads = _shareable(view, all_reads)
        if not reads:
            return cls({}, {}, copies, refs)
        writers = _writers_by_variable(view, reads.keys())
        outside = [node.index for node in view.nodes if node.op in _CALLS_OUTSIDE]
        watched = {
            i for found in (reads, writers) for ids in found.values() for i in ids
        }
        before = Precedence(view, watched.union(outside))
        canonical: dict[Port, Port] = {}
        hoists: dict[Port, tuple[int, ...]] = {}
        for key, found in reads.items():
            written_by = writers.get(key, [])
            canonical.update(_share(view, found, written_by, before))
            for read in found:
                if any(before.leads_to(call, read) for call in outside):
                    continue
                enters = _enters(view, read)
                if enters and _may_move(view, read, written_by, before):
                    hoists[Port(read, 0)] = enters
        return cls(canonical, hoists, copies, refs)


def unwritten_reads(view: GraphView) -> frozenset[int]:
    """Return the ReadVariableOps of variables that this graph surely does not write."""
    reads = _reads_by_variable(view)
    if _ANY in reads or any(node.op in _CALLS_OUTSIDE for node in view.nodes):
        return frozenset()
    written = _writers_by_variable(view, reads.keys())
    return frozenset(i for key in reads.keys() - written.keys() for i in reads[key])


def variables_updated_by_rows(view: GraphView) -> frozenset[object]:
    """Return the variables of which this graph updates rows, by `variable_of`."""
    return frozenset(
        variable_of(view, port)
        for node in view.nodes
        if node.op.startswith(_ROW_UPDATES)
        for port in node.inputs
    )


def variable_of(view: GraphView, port: Port) -> object:
    """Return what identifies the variable behind a handle."""
    node = view.nodes[port.node]
    while node.op in _PASS_HANDLE:
        port = node.inputs[input_behind(node.op, port.output)]
        node = view.nodes[port.node]
    if node.op in table.MERGE_OPS and attr_of(node.proto, "T").type == DT_RESOURCE:
        return _ANY
    if node.op == "VarHandleOp" and (name := attr_of(node.proto, "shared_name").s):
        return attr_of(node.proto, "container").s, name
    return port


def _reads_by_variable(view: GraphView) -> dict[object, list[int]]:
    reads: dict[object, list[int]] = {}
    for i in view.order:
        node = view.nodes[i]
        if node.op == "ReadVariableOp":
            reads.setdefault(variable_of(view, node.inputs[0]), []).append(i)
    return reads


def _shareable(
    view: GraphView, reads: Mapping[object, list[int]]
) -> dict[object, list[int]]:
    """Return the reads that may share a cast or move: none that may be fed."""
    free = {
        key: [i for i in found if view.nodes[i].name not in view.item.untouchable]
        for key, found in reads.items()
    }
    return {
        key: found
        for key, found in free.items()
        if key != _ANY
        and (len(found) > 1 or (found and view.frame(found[0]) is not None))
    }


def _writers_by_variable(
    view: GraphView, keys: Iterable[object]
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
    view: GraphView, reads: list[int], writers: list[int], before: Precedence
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


def _enters(view: GraphView, read: int) -> tuple[int, ...]:
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


def _may_move(
    view: GraphView, read: int, writers: list[int], before: Precedence
) -> bool:
    """Return whether no write runs before the read, nor in one of its loops."""
    loops = set(view.loops(read))
    return all(
        before.surely_before(read, writer) and loops.isdisjoint(view.loops(writer))
        for writer in writers
    )
