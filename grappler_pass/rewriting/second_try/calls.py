"""Which calls for gradients a graph has that may be made a second time.

Their scales are marked as they are traced. The name scope in which a call
looks whether its gradients are finite identifies it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_INT64

from grappler_pass.annotations import AGAIN, BARRIER, LOSS_SCALE, SCALE_UPDATE
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting.named_graphs import Readers, name_in, readers_in, texts_of

# What shows whether all gradients are finite reads one of these.
_SUMS = ("AddN", "Cast", "L2Loss")
# What is a scale, or one divided by it, where what it reads is.
_SCALES = ("Cast", "Complex", "Identity", "Reciprocal", "Snapshot")
# TensorFlow puts these in front of names.
_PREFIX = re.compile(r"(ConstantFolding|ConstantFoldingCtrl|Func)/")
_SCOPE = re.compile(rf".*?{SCALE_UPDATE}(_\d+)?(?=/|$)")


class Counters(NamedTuple):
    """What a state counts in one vector.

    Attributes:
      size: how many numbers.
      finite: the place of what is 1 if the latest gradients are finite, else 0.
      skipped: the place of the number of overflows.
    """

    size: int
    finite: int
    skipped: int

    def mark(self, output: int) -> str:
        """Return what is written on a node of which an output is the scale."""
        return " ".join(map(str, (output, *self)))


class Call(NamedTuple):
    """One call for gradients.

    Attributes:
      scale: the text of what the seeds are multiplied by.
      scope: the name of the scope that looks at the gradients.
      gradients: the texts of what is looked at there, in true units.
      is_finite: the node that says whether all of it is finite.
      counters: what the state counts.
      handle: the text of the variable that holds these.
    """

    scale: str
    scope: str
    gradients: tuple[str, ...]
    is_finite: str
    counters: Counters
    handle: str


def calls_in(graph_def: GraphDef) -> Iterator[Call]:
    """Yield the calls of a graph."""
    nodes = {node.name: node for node in graph_def.node}
    readers = readers_in(graph_def.node)
    scopes: dict[str, list[NodeDef]] = defaultdict(list)
    for node in graph_def.node:
        scopes[scope_of(node.name)].append(node)
    for node in graph_def.node:
        if AGAIN in node.attr:
            yield from _calls_of(node, nodes, readers, scopes)


def scope_of(name: str) -> str:
    """Return the scope of a node that adjusts a loss scale; "" of another node."""
    if SCALE_UPDATE not in name:
        return ""
    found = _SCOPE.match(_PREFIX.sub("", name, count=1))
    return found.group() if found else ""


def _calls_of(
    marked: NodeDef,
    nodes: Mapping[str, NodeDef],
    readers: Readers,
    scopes: Mapping[str, Sequence[NodeDef]],
) -> Iterator[Call]:
    output, *places = map(int, marked.attr[AGAIN].s.split())
    scale = f"{marked.name}:{output}" if output else marked.name
    by_scope: dict[str, list[str]] = {}
    for text in _unscaled(scale, readers):
        for end in _rounded(text, readers):
            for reader in readers[end]:
                if scope := scope_of(reader.name):
                    ends = by_scope.setdefault(scope, [])
                    ends.extend([end] if end not in ends else [])
    for scope, gradients in by_scope.items():
        is_finite = _is_finite(scopes[scope], nodes)
        handle = _handle(scopes[scope], nodes)
        if is_finite and handle:
            counters = Counters(*places)
            yield Call(scale, scope, tuple(gradients), is_finite, counters, handle)


def _unscaled(scale: str, readers: Readers) -> Iterator[str]:
    """Yield the gradients in true units that a scale is taken out of."""

    def scales(text: str) -> Iterator[str]:
        return (node.name for node in readers[text] if node.op in _SCALES)

    for text in reached([scale], scales):
        for node in readers[text]:
            if BARRIER in node.attr:
                yield node.name


def _rounded(text: str, readers: Readers) -> Iterator[str]:
    """Yield a gradient, and what it is as its type holds it."""
    return reached([text], lambda t: (n.name for n in readers[t] if n.op == "Cast"))


def _is_finite(within: Sequence[NodeDef], nodes: Mapping[str, NodeDef]) -> str:
    """Name the node that looks at the sum of all squares; "" for none."""
    names = {node.name for node in within}
    found = [
        node.name
        for node in within
        if node.op == "IsFinite"
        and name_in(node.input[0]) in names
        and nodes[name_in(node.input[0])].op in _SUMS
    ]
    return found[0] if len(found) == 1 else ""


def _handle(within: Sequence[NodeDef], nodes: Mapping[str, NodeDef]) -> str:
    """Return the text of the variable that holds the counters of a state."""
    names = {name_in(text) for node in within for text in texts_of(node)}

    def sources(name: str) -> list[str]:
        return [name_in(text) for text in texts_of(nodes[name]) if text[0] != "^"]

    for name in reached(sorted(names), sources):
        node = nodes[name]
        is_state = LOSS_SCALE in node.attr and node.op == "ReadVariableOp"
        if is_state and node.attr["dtype"].type == DT_INT64:
            return _outside_branches(texts_of(node)[0], nodes)
    return ""


def _outside_branches(text: str, nodes: Mapping[str, NodeDef]) -> str:
    node = nodes[name_in(text)]
    while node.op in ("Identity", "Switch"):
        text = texts_of(node)[0]
        node = nodes[name_in(text)]
    return text
