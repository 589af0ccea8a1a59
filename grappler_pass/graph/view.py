"""A graph by numbers: nodes, edges, execution order, loop frames; and edits of it.

Decides nothing about precision. The GraphDef that a graph is made of is never written,
nor are its nodes: an edit copies the node first, in a copy of the graph.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.errors import AmpError
from grappler_pass.fork_safety import cached_attribute
from grappler_pass.graph.device_types import DeviceError, Home, device_type_at
from grappler_pass.graph.editing import data_of, split_input
from grappler_pass.graph.frames import Frame, frames_of
from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
)
from grappler_pass.graph.type_slots import signature_of
from grappler_pass.graph.walks import reached


class GraphError(AmpError, ValueError):
    """The GraphDef is not a graph: dangling input, name used twice, illegal cycle."""


@dataclasses.dataclass(frozen=True)
class Item:
    """What of a graph its caller relies on; all are node names.

    Attributes:
      fetch: nodes whose outputs are read.
      feed: nodes whose outputs are replaced by the caller.
      preserve: nodes that must stay what they are (includes the two above).
      excluded: nodes that must stay float32, each with what the user excluded it by.
      barriers: nodes behind which nothing is in 16 bits, beside those marked so.
      updates: data inputs, by node and number, that only serve to update variables:
        of nodes that call functions.
    """

    fetch: tuple[str, ...] = ()
    feed: tuple[str, ...] = ()
    preserve: tuple[str, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    barriers: tuple[str, ...] = ()
    updates: tuple[tuple[str, int], ...] = ()

    @cached_attribute
    def untouchable(self) -> frozenset[str]:
        """Every node whose name and output dtypes must stay."""
        return frozenset((*self.fetch, *self.feed, *self.preserve))


class Port(NamedTuple):
    """Output number `output` of node number `node`; -1 is its end, to wait for."""

    node: int
    output: int


class Reader(NamedTuple):
    """Input number `input` of node number `node`, which waits for nodes by its last."""

    node: int
    input: int


Edge = tuple[Port, Reader]


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """One node; `inputs` and `controls` refer to nodes by number.

    Only the graph that has made it writes it.
    """

    index: int
    name: str
    op: str
    device: str
    inputs: tuple[Port, ...]
    controls: tuple[int, ...]
    proto: NodeDef
    _device_type: str

    @property
    def device_type(self) -> str:
        """The type of device that it runs on: "CPU", "GPU", ...

        Raises:
          DeviceError: it names no device, and the graph was made without a home.
        """
        if not self._device_type:
            raise DeviceError(
                f"node {self.name!r} names no device, and its graph was made without "
                "a home: make the Graph with the Home of its program."
            )
        return self._device_type

    @property
    def place(self) -> tuple[str, str]:
        """Its device as the graph says it, and the type of that."""
        return self.device, self.device_type

    @property
    def sources(self) -> list[int]:
        """Numbers of the nodes that it waits for, data before control inputs."""
        return [*(port.node for port in self.inputs), *self.controls]

    @property
    def edges(self) -> Iterator[Edge]:
        """What it reads and waits for, each with the input that does."""
        ends = (Port(source, -1) for source in self.controls)
        for position, port in enumerate(itertools.chain(self.inputs, ends)):
            yield port, Reader(self.index, position)


_COLOCATION = "_class"


class Graph:
    """Nodes by number and name, readers of every port, order, frames.

    Whoever edits a graph that others hold edits a `copy` of it. What is new has the
    last numbers, wherever it is to stand in the GraphDef.

    Attributes:
      nodes: in the order of the GraphDef.
      index: node name to number.
      library: functions that nodes call.
      item: what the caller relies on.
    """

    def __init__(
        self, graph_def: GraphDef, item: Item | None = None, home: Home | None = None
    ) -> None:
        """Index a graph.

        Args:
          graph_def: stays unchanged and must outlive the graph.
          item: what the caller relies on.
          home: where nodes run that name no device; None: they must not be asked.

        Raises:
          GraphError: a name is used twice, or an input names no node.
        """
        self.library, self.item = graph_def.library, item or Item()
        self._versions, self._home = graph_def.versions, home
        self.index = {str(node.name): i for i, node in enumerate(graph_def.node)}
        if len(self.index) != len(graph_def.node):
            counts = Counter(str(node.name) for node in graph_def.node)
            ((repeated, _),) = counts.most_common(1)
            raise GraphError(f"two nodes are called {repeated!r}")
        self.nodes = list(itertools.starmap(self._node, enumerate(graph_def.node)))
        readers: dict[Port, list[Reader]] = defaultdict(list)
        for node in self.nodes:
            for port, reader in node.edges:
                readers[port].append(reader)
        self._readers = {port: tuple(found) for port, found in readers.items()}
        # Numbers of nodes that may be written, and names that are to be used.
        self._owned: set[int] = set()
        self._reserved: set[str] = set()
        # Where new nodes stand: beside which, and on which side of it.
        self._places: dict[int, tuple[int, int]] = {}

    def _node(self, number: int, proto: NodeDef) -> Node:
        inputs: list[Port] = []
        controls: list[int] = []
        for text in proto.input:
            name, output = split_input(text)
            source = self.index.get(name)
            if source is None:
                raise GraphError(f"input {text!r} of node {proto.name!r} names no node")
            if output < 0:
                controls.append(source)
            else:
                inputs.append(Port(source, output))
        where = proto.device, tuple(inputs), tuple(controls), proto
        device_type = device_type_at(proto, self._home)
        return Node(number, proto.name, proto.op, *where, device_type)

    def proto(self, name: str) -> NodeDef:
        """Return a node by its name, for reading."""
        return self.nodes[self.index[name]].proto

    def port(self, text: str) -> Port:
        """Return the port that an input string names."""
        name, output = split_input(text)
        return Port(self.index[name], output)

    def text(self, port: Port) -> str:
        """Return the input string that names a port."""
        name = self.nodes[port.node].name
        return f"{name}:{port.output}" if port.output else name

    def dtype(self, port: Port) -> int:
        """Return the DataType of an output."""
        return signature_of(self.nodes[port.node].proto).outputs[port.output].dtype

    def readers(self, port: Port) -> tuple[Reader, ...]:
        """Return the inputs that read a tensor, or wait for a node, in node order."""
        return self._readers.get(port, ())

    def reading(self, text: str) -> list[NodeDef]:
        """Return the nodes that read a tensor, by an input string that names it."""
        return [
            self.nodes[reader.node].proto for reader in self.readers(self.port(text))
        ]

    def control_readers(self, node: int) -> tuple[int, ...]:
        """Return the nodes that wait for `node` by a control edge."""
        return tuple(reader.node for reader in self.readers(Port(node, -1)))

    def output_ports(self, node: int) -> tuple[Port, ...]:
        """Return the ports of `node` that have a reader, in output order."""
        return self._ports_of.get(node, ())

    @cached_attribute
    def _ports_of(self) -> Mapping[int, tuple[Port, ...]]:
        ports: dict[int, list[Port]] = {}
        for port in sorted(self._readers):
            if port.output >= 0:
                ports.setdefault(port.node, []).append(port)
        return {node: tuple(found) for node, found in ports.items()}

    def source(self, port: Port, through: Collection[str]) -> Node:
        """Return what makes a tensor, before nodes of some ops hand on their first."""
        node = self.nodes[port.node]
        while node.op in through:
            node = self.nodes[node.inputs[0].node]
        return node

    def read_by(self, node: int) -> Iterator[int]:
        """Yield the nodes that read an output of `node`, once for each that is read."""
        for port in self.output_ports(node):
            for reader in self.readers(port):
                yield reader.node

    def frame(self, node: int) -> Frame | None:
        """Return the innermost loop frame that `node` runs in; None outside loops."""
        return self._frames[node]

    def loops(self, node: int) -> tuple[Frame, ...]:
        """Return the loop frames that `node` runs in, the innermost first."""
        found: list[Frame] = []
        frame = self._frames[node]
        while frame is not None:
            found.append(frame)
            frame = frame.parent
        return tuple(found)

    def waits_for(self, node: int) -> list[int]:
        """Return what a node waits for: an Exit also for all that enters its loop.

        What enters a loop may reach an Exit by a back edge alone.
        """
        sources = self.nodes[node].sources
        if self.nodes[node].op in EXIT_OPS:
            sources += self._entries.get(self.frame(sources[0]), ())
        return sources

    def weight(self, node: int) -> float:
        """Return how often `node` runs per step."""
        frame = self._frames[node]
        return frame.weight if frame else 1.0

    @cached_attribute
    def roots(self) -> list[int]:
        """What is run: what the caller relies on, else all that nobody reads."""
        wanted = [
            self.index[n] for n in sorted(self.item.untouchable) if n in self.index
        ]
        if wanted:
            return wanted
        read = {source for node in self.nodes for source in node.sources}
        return [node.index for node in self.nodes if node.index not in read]

    def behind(self, starts: Iterable[int]) -> frozenset[int]:
        """Return some nodes, and all that they wait for."""
        return frozenset(reached(starts, lambda i: self.nodes[i].sources))

    @cached_attribute
    def _frames(self) -> Sequence[Frame | None]:
        return frames_of(self.nodes, self.order)

    @cached_attribute
    def _entries(self) -> Mapping[Frame | None, Sequence[int]]:
        entries: defaultdict[Frame | None, list[int]] = defaultdict(list)
        for node in self.nodes:
            if node.op in ENTER_OPS:
                entries[self.frame(node.index)].append(node.index)
        return entries

    @property
    def awaited(self) -> frozenset[str]:
        """Names of nodes whose device others, colocated with them, are yet to get."""
        return frozenset(
            _colocated_with(value)
            for node in self.nodes
            if not node.device and _COLOCATION in node.proto.attr
            for value in node.proto.attr[_COLOCATION].list.s
        )

    @cached_attribute
    def order(self) -> tuple[int, ...]:
        """Node numbers, inputs first; a back edge of a loop counts for nothing.

        Raises:
          GraphError: there is another cycle.
        """
        nodes = self.nodes
        next_nodes: list[list[int]] = [[] for _ in nodes]
        # As nodes read; what is waited for follows. Edits must not make another order.
        edges = sorted(self._readers.items(), key=lambda edge: edge[1][0])
        for port, readers in sorted(edges, key=lambda edge: edge[0].output < 0):
            next_nodes[port.node].extend(reader.node for reader in readers)
        for node in nodes:
            if node.op in NEXT_ITERATION_OPS:
                targets = next_nodes[node.index]
                next_nodes[node.index] = [
                    i for i in targets if nodes[i].op not in MERGE_OPS
                ]

        waiting = [0] * len(nodes)
        for target in itertools.chain.from_iterable(next_nodes):
            waiting[target] += 1
        # A queue, not a stack: the order stays close to that of the GraphDef.
        order = [i for i, count in enumerate(waiting) if count == 0]
        for i in order:
            for target in next_nodes[i]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    order.append(target)
        if len(order) != len(nodes):
            stuck = next(i for i, count in enumerate(waiting) if count > 0)
            raise GraphError(
                f"node {nodes[stuck].name!r} lies on a cycle, or after one, that has "
                "no NextIteration"
            )
        return tuple(order)

    def copy(self) -> Graph:
        """Return the same graph, to be edited: this one stays as it is."""
        copy = object.__new__(Graph)
        vars(copy).update(
            vars(self),
            nodes=self.nodes.copy(),
            index=self.index.copy(),
            _readers=self._readers.copy(),
            _owned=set(),
            _reserved=self._reserved.copy(),
            _places=self._places.copy(),
        )
        return copy

    def edit(self, name: str) -> NodeDef:
        """Return a node of which attributes may be written."""
        return self._own(self.index[name]).proto

    def _own(self, number: int) -> Node:
        """Return a node that no other graph has, in the place of one that others do."""
        node = self.nodes[number]
        if number in self._owned:
            return node
        proto = NodeDef()
        proto.CopyFrom(node.proto)
        edges = node.inputs, node.controls, proto, node._device_type
        own = Node(number, node.name, node.op, node.device, *edges)
        self.nodes[number] = own
        self._owned.add(number)
        return own

    def unused(self, wanted: str) -> str:
        """Return a name for a new node, with a number behind it if it is taken."""
        name, number = wanted, 0
        while name in self.index or name in self._reserved:
            number += 1
            name = f"{wanted}_{number}"
        self._reserved.add(name)
        return name

    def add(self, proto: NodeDef, behind: str = "") -> str:
        """Take in a new node, and return its name.

        Args:
          proto: it is the graph's from now on.
          behind: the node that it is to follow; else it comes last.
        """
        assert proto.name not in self.index, proto.name
        if behind:
            self._stand(len(self.nodes), self.index[behind], 1)
        self._take(len(self.nodes), proto)
        return str(proto.name)

    def put(self, proto: NodeDef, *before: NodeDef) -> None:
        """Put a node in the place of that of its name, and new ones before it."""
        number = self.index[proto.name]
        for each in before:
            self._stand(len(self.nodes), number, -1)
            self._take(len(self.nodes), each)
        self._take(number, proto)

    def read(self, reader: Reader, text: str) -> None:
        """Let a data input read another tensor."""
        node, position = self._own(reader.node), reader.input
        node.proto.input[position] = text
        inputs = list(node.inputs)
        before, inputs[position] = inputs[position], self.port(text)
        node.inputs = tuple(inputs)
        self._connect({(before, reader)}, {(inputs[position], reader)})

    def wait(self, name: str, texts: Iterable[str]) -> None:
        """Let a node wait for further ones, given as `^node`."""
        proto = self.edit(name)
        proto.input.extend(t for t in dict.fromkeys(texts) if t not in proto.input)
        self._take(self.index[name], proto)

    def _stand(self, number: int, other: int, side: int) -> None:
        place, _ = self._places.get(other, (other, 0))
        self._places[number] = place, side

    def _take(self, number: int, proto: NodeDef) -> None:
        """Take in a node as it reads now."""
        self.index[proto.name] = number
        before = {
            edge for node in self.nodes[number : number + 1] for edge in node.edges
        }
        node = self._node(number, proto)
        self.nodes[number : number + 1] = [node]
        self._connect(before, set(node.edges))
        self._owned.add(number)

    def _connect(self, before: Set[Edge], after: Set[Edge]) -> None:
        """Put edges in the place of others, and forget what followed from those."""
        for port, reader in before - after:
            left = tuple(each for each in self._readers.pop(port) if each != reader)
            if left:
                self._readers[port] = left
        for port, reader in after - before:
            self._readers[port] = tuple(sorted((*self.readers(port), reader)))
        for name in ("_entries", "_frames", "_ports_of", "order", "roots"):
            vars(self).pop(name, None)

    def to_graph_def(self) -> GraphDef:
        """Return the graph that it has become, in the order of the given one."""
        result = GraphDef(versions=self._versions, library=self.library)
        ordered = sorted(
            self.nodes, key=lambda node: self._places.get(node.index, (node.index, 0))
        )
        result.node.extend(node.proto for node in ordered)
        return result

    def redirected(
        self,
        inputs_of: Callable[[NodeDef], Iterable[str]],
        gone: Collection[str] = (),
        new: Iterable[NodeDef] = (),
    ) -> GraphDef:
        """Return a graph whose nodes read other tensors.

        Args:
          inputs_of: returns what a node is to read and to wait for, in any order and
            as often as it likes.
          gone: the names of nodes that are taken out: nothing reads them then.
          new: nodes that come last; asked for once all inputs are known.
        """
        result = GraphDef(versions=self._versions, library=self.library)
        for node in self.nodes:
            if node.name in gone:
                continue
            texts = list(inputs_of(node.proto))
            controls = dict.fromkeys(text for text in texts if text.startswith("^"))
            proto = result.node.add()
            proto.CopyFrom(node.proto)
            proto.input[:] = [*data_of(texts), *controls]
            if gone and _COLOCATION in proto.attr:
                # It is no longer colocated with nodes that are gone.
                values = proto.attr[_COLOCATION].list.s
                values[:] = [
                    each for each in values if _colocated_with(each) not in gone
                ]
                if not values:
                    del proto.attr[_COLOCATION]
        result.node.extend(new)
        return result


def _colocated_with(value: bytes) -> str:
    return value.decode().removeprefix("loc:@")
