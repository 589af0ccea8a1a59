"""Which tensors are a ref variable's own memory, written before they are read.

A read of a ref variable (`VariableV2`) copies nothing, nor does what hands the read on:

    variable --> Identity --> Enter --> matmul     (every iteration)
    variable --> AssignAdd                         (every iteration)

So the product multiplies by what the variable holds when the product runs, and a cast
of it is the same only if it is made at that moment.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_table import NEXT_ITERATION_OPS
from grappler_pass.graph.type_slots import op_def_of
from grappler_pass.graph.view import GraphView, Node, Port, Reader
from grappler_pass.graph.walks import reached

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
      passing: nodes that hand such a tensor on to one of these inputs.
    """

    ports: frozenset[Port] = frozenset()
    late: frozenset[Reader] = frozenset()
    passing: frozenset[int] = frozenset()

    @classmethod
    def from_view(cls, view: GraphView) -> RefReads:
        """Follow every ref variable of `view` to its readers and writers."""
        found = [each for each in _memories(view) if each.writers]
        if not found:
            return cls()
        order = Precedence(view, {i for each in found for i in each.nodes})
        ports = frozenset(port for each in found for port in each.ports)
        late = frozenset(r for each in found for r in each.late(view, order))
        return cls(ports, late, frozenset(_passing(view, ports, late)))

    def awaited(
        self, view: GraphView, port: Port, reader: Node | None
    ) -> tuple[int, ...]:
        """Return what a cast of a tensor is to wait for by control edges.

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


class _Memory(NamedTuple):
    """One variable: where its memory is read, and the nodes that write it."""

    ports: frozenset[Port]
    readers: tuple[tuple[Port, Reader], ...]
    writers: frozenset[int]

    @property
    def nodes(self) -> Iterator[int]:
        yield from self.writers
        for port, reader in self.readers:
            yield from (port.node, reader.node)

    def late(self, view: GraphView, order: Precedence) -> Iterator[Reader]:
        for port, reader in self.readers:
            if any(
                not order.surely_before(writer, port.node)
                and (
                    not order.surely_before(reader.node, writer)
                    or _is_read_again(view, port, reader, writer)
                )
                for writer in self.writers
                if writer != reader.node
            ):
                yield reader


def _is_read_again(view: GraphView, port: Port, reader: Reader, writer: int) -> bool:
    """Return whether a loop that both run in was entered with the tensor.

    What enters a loop is read in each iteration, and written in those before.
    """
    enters = view.nodes[port.node].op in table.ENTER_OPS
    made_in = view.loops(port.node)[1 if enters else 0 :]
    shared = set(view.loops(reader.node)) & set(view.loops(writer))
    return not shared.issubset(made_in)


def _memories(view: GraphView) -> Iterator[_Memory]:
    variables: dict[object, list[int]] = {}
    for node in view.nodes:
        if node.op in _VARIABLES:
            variables.setdefault(_key(node), []).append(node.index)
    for nodes in variables.values():
        yield _memory(view, nodes)


def _key(node: Node) -> object:
    attr = node.proto.attr
    container = attr["container"].s if "container" in attr else b""
    shared_name = attr["shared_name"].s if "shared_name" in attr else b""
    return container, shared_name.decode() or node.name


def _memory(view: GraphView, variables: list[int]) -> _Memory:
    waiting = [Port(node, 0) for node in variables]
    ports = set(waiting)
    readers: list[tuple[Port, Reader]] = []
    writers: set[int] = set()
    for port in waiting:
        for reader in view.readers(port):
            node = view.nodes[reader.node]
            readers.append((port, reader))
            if writes := reader.input in _written_inputs(node.op):
                writers.add(node.index)
            if writes or node.op in _PASSING:
                more = set(_handed_on(view, reader)) - ports
                ports |= more
                waiting.extend(sorted(more))
    return _Memory(frozenset(ports), tuple(readers), frozenset(writers))


@functools.cache
def _written_inputs(op: str) -> frozenset[int]:
    """Return which inputs of an op are variables that it may write."""
    op_def = op_def_of(op)
    if op_def is None or op in _PASSING or op == "IsVariableInitialized":
        return frozenset()
    return frozenset(i for i, arg in enumerate(op_def.input_arg) if arg.is_ref)


def _handed_on(view: GraphView, reader: Reader) -> Iterator[Port]:
    for port in view.output_ports(reader.node):
        if view.nodes[reader.node].op != "IdentityN" or port.output == reader.input:
            yield port


def _passing(
    view: GraphView, ports: frozenset[Port], late: frozenset[Reader]
) -> Iterator[int]:
    """Return the nodes between a variable and its late readers."""

    def passing_before(inputs: Iterable[Port]) -> list[int]:
        return [p.node for p in inputs if view.nodes[p.node].op in _PASSING]

    return reached(
        passing_before(view.nodes[r.node].inputs[r.input] for r in late),
        lambda i: passing_before(p for p in view.nodes[i].inputs if p in ports),
    )


class Precedence:
    """The order among a few watched nodes, by sweeps over the graph.

    Back edges of loops are followed, so two nodes of one loop that reach each other
    run both before and after one another.
    """

    def __init__(self, view: GraphView, watched: Iterable[int]) -> None:
        """Find which of the `watched` nodes, by number, lead to which."""
        self._bit = {node: 1 << i for i, node in enumerate(sorted(watched))}
        self._masks = [0] * len(view.nodes)
        while self._sweep(view):
            pass

    def _sweep(self, view: GraphView) -> bool:
        """Pass every node's ancestors on; return whether a back edge brought news."""
        news = False
        for i in view.order:
            node = view.nodes[i]
            mask = self._bit.get(i, 0)
            for source, _ in node.inputs:
                mask |= self._masks[source]
            for source in node.controls:
                mask |= self._masks[source]
            if mask != self._masks[i]:
                self._masks[i] = mask
                news = news or node.op in NEXT_ITERATION_OPS
        return news

    def leads_to(self, first: int, second: int) -> bool:
        """Return whether `second` waits for `first`, maybe in an earlier iteration."""
        return bool(self._masks[second] & self._bit[first])

    def surely_before(self, first: int, second: int) -> bool:
        """Return whether `first` runs before `second`, and never after it."""
        return self.leads_to(first, second) and not self.leads_to(second, first)
