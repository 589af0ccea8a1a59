"""A graph that is edited: nodes by name, who reads what, written once at the end.

A tensor is called as inputs call it: `node`, or `node:1` for a further output. `^node`
stands for the end of a node, which others wait for. `GraphView` is the frozen face of a
graph, by numbers, for whoever plans; `Graph` is for whoever changes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.type_slots import op_def_of

_COLOCATION = "_class"
# The field of an attribute's value that holds a kind of attribute; in lists, too.
_FIELDS = {"type": "type", "int": "i", "float": "f", "bool": "b", "string": "s"}


def name_in(text: str) -> str:
    """Return the node whose output, or whose end, an input stands for."""
    return text.removeprefix("^").partition(":")[0]


def texts_of(node: NodeDef) -> list[str]:
    """Return what a node reads and waits for, each output written in one way."""
    return [text.removesuffix(":0") for text in node.input]


def data_of(texts: Iterable[str]) -> list[str]:
    """Return the tensors among inputs, without what is only waited for."""
    return [text for text in texts if not text.startswith("^")]


def readers_by_name(nodes: Iterable[NodeDef]) -> Mapping[str, Sequence[NodeDef]]:
    """Return what reads, or waits for, each node, each once."""
    readers: dict[str, list[NodeDef]] = defaultdict(list)
    for node in nodes:
        for name in dict.fromkeys(map(name_in, node.input)):
            readers[name].append(node)
    return readers


def new_node(
    op: str, name: str = "", inputs: Iterable[str] = (), device: str = "", **attrs: Any
) -> NodeDef:
    """Return a node with attributes of the kinds that its op's definition says."""
    node = NodeDef(name=name, op=op, input=inputs, device=device)
    op_def = op_def_of(op)
    kinds = {attr.name: attr.type for attr in op_def.attr} if op_def else {}
    for key, value in attrs.items():
        # All that an op without a definition has here are types.
        assumed = "list(type)" if isinstance(value, list) else "type"
        kind, attr = kinds.get(key, assumed), node.attr[key]
        if kind in _FIELDS:
            setattr(attr, _FIELDS[kind], value)
        elif kind.startswith("list("):
            getattr(attr.list, _FIELDS[kind[5:-1]]).extend(value)
        else:
            getattr(attr, kind).CopyFrom(value)
    return node


def new_constant(
    name: str,
    value: Any,
    dtype: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    inputs: Iterable[str] = (),
    device: str = "",
) -> NodeDef:
    """Return a constant; it runs in the loop or branch of what it waits for."""
    tensor = tf.make_tensor_proto(value, dtype, shape)
    return new_node("Const", name, inputs, device, dtype=tensor.dtype, value=tensor)


class Reader(NamedTuple):
    """An input of a node, by its number."""

    node: NodeDef
    input: int


class Graph:
    """The nodes of a graph that is to become another one.

    The GraphDef that it is made of is never written, nor are its nodes: what is to be
    changed is asked for by `edit`, which copies it first.

    Attributes:
      nodes: by name, for reading.
      library: functions that nodes call.
    """

    def __init__(self, graph_def: GraphDef) -> None:
        """Begin with a graph, unchanged."""
        self._given = graph_def
        self.library = graph_def.library
        self.nodes: dict[str, NodeDef] = {node.name: node for node in graph_def.node}
        self._own: set[str] = set()
        self._names = set(self.nodes)
        # Where nodes stand: beside which, and on which side of it.
        self._places = {name: (number, 0) for number, name in enumerate(self.nodes)}
        self._readers: dict[str, dict[tuple[str, int], None]] | None = None

    def edit(self, name: str) -> NodeDef:
        """Return a node that may be written, but for its inputs."""
        if name not in self._own:
            copy = NodeDef()
            copy.CopyFrom(self.nodes[name])
            self.nodes[name] = copy
            self._own.add(name)
        return self.nodes[name]

    def unused(self, wanted: str) -> str:
        """Return a name for a new node, with a number behind it if it is taken."""
        name, number = wanted, 0
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def add(self, node: NodeDef, behind: str = "") -> str:
        """Take in a new node, and return its name.

        Args:
          node: it is the graph's from now on.
          behind: the node that it is to follow; else it comes last.
        """
        assert node.name not in self.nodes, node.name
        is_last = (len(self._places), 0)
        place = (self._places[behind][0], 1) if behind else is_last
        self._take(node, place)
        return str(node.name)

    def put(self, node: NodeDef, *before: NodeDef) -> None:
        """Put a node in the place of that of its name, and new ones before it."""
        for position, text in enumerate(texts_of(self.nodes[node.name])):
            self._forget(text, node.name, position)
        place = self._places[node.name]
        for each in before:
            self._take(each, (place[0], -1))
        self._take(node, place)

    def _take(self, node: NodeDef, place: tuple[int, int]) -> None:
        self._places[node.name] = place
        self._names.add(node.name)
        self.nodes[node.name] = node
        self._own.add(node.name)
        if self._readers is not None:
            for position, text in enumerate(texts_of(node)):
                self._readers[text][node.name, position] = None

    def readers(self, text: str) -> list[Reader]:
        """Return the inputs that read a tensor, or wait for a node's end."""
        if self._readers is None:
            self._readers = defaultdict(dict)
            for node in self.nodes.values():
                for position, each in enumerate(texts_of(node)):
                    self._readers[each][node.name, position] = None
        found = self._readers.get(text, ())
        return [Reader(self.nodes[name], position) for name, position in found]

    def reading(self, text: str) -> list[NodeDef]:
        """Return the nodes that read a tensor, or wait for a node's end."""
        return [reader.node for reader in self.readers(text)]

    @property
    def awaited(self) -> frozenset[str]:
        """Names of nodes whose device others, colocated with them, are yet to get."""
        waiting = (n for n in self.nodes.values() if _COLOCATION in n.attr)
        return frozenset(
            _colocated_with(value)
            for node in waiting
            if not node.device
            for value in node.attr[_COLOCATION].list.s
        )

    def read(self, reader: str, position: int, text: str) -> None:
        """Let an input of a node read another tensor."""
        node = self.edit(reader)
        self._forget(node.input[position].removesuffix(":0"), reader, position)
        node.input[position] = text
        if self._readers is not None:
            self._readers[text.removesuffix(":0")][reader, position] = None

    def _forget(self, text: str, reader: str, position: int) -> None:
        if self._readers is not None:
            self._readers[text].pop((reader, position), None)

    def replace(self, readers: Iterable[Reader], text: str) -> None:
        """Let some inputs read another tensor."""
        for reader in readers:
            self.read(reader.node.name, reader.input, text)

    def wait(self, name: str, texts: Iterable[str]) -> None:
        """Let a node wait for further ones, given as `^node`."""
        for text in dict.fromkeys(texts):
            if text not in self.nodes[name].input:
                self.edit(name).input.append(text)
                if self._readers is not None:
                    position = len(self.nodes[name].input) - 1
                    self._readers[text][name, position] = None

    def redirect(
        self,
        inputs_of: Callable[[NodeDef], Iterable[str]],
        gone: Collection[str] = (),
    ) -> None:
        """Let every node read other tensors, and take nodes out.

        Args:
          inputs_of: returns what a node is to read and to wait for, in any order and
            as often as it likes.
          gone: the names of nodes that nothing reads then.
        """
        self._readers = None
        for name in gone:
            del self.nodes[name]
        for name, node in self.nodes.items():
            texts = list(inputs_of(node))
            controls = dict.fromkeys(text for text in texts if text.startswith("^"))
            inputs = [*data_of(texts), *controls]
            if inputs != list(node.input):
                self.edit(name).input[:] = inputs
            if gone and _COLOCATION in node.attr:
                # It is no longer colocated with nodes that are gone.
                attr = self.edit(name).attr
                values = attr[_COLOCATION].list.s
                values[:] = [
                    each for each in values if _colocated_with(each) not in gone
                ]
                if not values:
                    del attr[_COLOCATION]

    def to_graph_def(self) -> GraphDef:
        """Return the graph that it has become, in the order of the given one."""
        result = GraphDef(versions=self._given.versions, library=self.library)
        ordered = sorted(self.nodes, key=self._places.__getitem__)
        result.node.extend(self.nodes[name] for name in ordered)
        return result


def _colocated_with(value: bytes) -> str:
    return value.decode().removeprefix("loc:@")
