"""Take gradients again that overflowed, without the loss scale, where they are used.

    Before   scale --> ... --> gradient --> finite? --> adjusts the scale
                               gradient --> reader
    After    1, if not finite --> ... --> gradient'
             Merge(gradient if finite, gradient') --> reader

What lies between the scale and the gradients is copied. The copy starts from a constant
that runs only after an overflow, so that all else in it does. Whoever reads any of what
is copied, as gradients of gradients do, reads the copy then; what reads whether the
gradients are finite reads that of the second ones, as does the state, which has lowered
its scale by then: an overflow that did no harm is not counted as a skipped step.

The scales of calls for gradients are marked as they are traced. The name scope in which
a call looks whether its gradients are finite identifies it.

Not done: where a graph holds an optimizer's step or an assignment that is skipped,
since a later step makes good for it; where the copy might have effects, or draws random
numbers; functions that are called and stay so, and what XLA compiles.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import (
    DT_BOOL,
    DT_COMPLEX64,
    DT_COMPLEX128,
    DT_DOUBLE,
    DT_FLOAT,
    DT_INT32,
    DT_INT64,
)

from grappler_pass.annotations import (
    AGAIN,
    BARRIER,
    FINITE_BRANCH,
    LOSS_SCALE,
    SCALE_UPDATE,
    SKIPPED_ASSIGNMENT,
)
from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.graph.editing import Graph, data_of, name_in, new_node, texts_of
from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
    READ_OPS,
)
from grappler_pass.graph.op_traits import has_effects, is_random
from grappler_pass.graph.type_slots import signature_of
from grappler_pass.graph.view import (
    Frame,
    GraphView,
    Node,
    Port,
    port_text,
    split_input,
)
from grappler_pass.graph.walks import reached

NAME = "tf_amp_again"
_PARTS = {DT_COMPLEX64: DT_FLOAT, DT_COMPLEX128: DT_DOUBLE}


def with_second_tries(graph_def: GraphDef) -> GraphDef | None:
    """Return a graph that takes gradients again that overflowed; None for the same.

    The given graph is not written.
    """
    if skips(graph_def.node) or tries_again(graph_def.node):
        return None
    changed = None
    waiting = [(f"{NAME}_{i}", call) for i, call in enumerate(calls_in(graph_def))]
    while waiting:
        view = GraphView.from_graph_def(changed or graph_def)
        chosen, waiting = _apart(view, waiting)
        if chosen:
            changed = _Round(view, chosen).result(changed or graph_def)
    return changed


def skips(nodes: Iterable[NodeDef]) -> bool:
    """Return whether there is a step, or an assignment, that may be skipped.

    What adjusts a loss scale has such branches and assignments of its own.
    """
    return any(
        (FINITE_BRANCH in node.name or SKIPPED_ASSIGNMENT in node.name)
        and SCALE_UPDATE not in node.name
        for node in nodes
    )


def tries_again(nodes: Iterable[NodeDef]) -> bool:
    """Return whether gradients are taken again that overflowed."""
    return any(NAME in node.name for node in nodes)


def _apart(
    view: GraphView, calls: Sequence[tuple[str, Call]]
) -> tuple[list[_Again], list[tuple[str, Call]]]:
    """Return calls that have nothing in common, as they are made again, and others.

    Left out are those that cannot be. Each comes with the prefix of its new names.
    """
    chosen: list[_Again] = []
    waiting = []
    for prefix, call in calls:
        region, told = region_of(view, call), _told(view, call)
        if region is None or any(_dtype(view, t) != DT_BOOL for t in data_of(told)):
            continue
        before = _before(view, call) | region.all
        again = _Again(view, call, region, before, prefix, told)
        if any(map(again.meets, chosen)):
            waiting.append((prefix, call))
        else:
            chosen.append(again)
    return chosen, waiting


@dataclasses.dataclass(frozen=True)
class _Round:
    """Calls with nothing in common, all of which are made again.

    Attributes:
      view: of the graph as it was.
      calls: as they are made again.
    """

    view: GraphView
    calls: Sequence[_Again]

    def result(self, graph_def: GraphDef) -> GraphDef:
        """Return the graph with these second tries; the given one is not written."""
        graph = Graph(graph_def)
        graph.redirect(lambda node: map(self._reading(node), texts_of(node)))
        for again in self.calls:
            again.complete(self._reading)
            for node in again.made:
                graph.add(node)
        return graph.to_graph_def()

    def _reading(self, node: NodeDef) -> Callable[[str], str]:
        """Return what a node is to read, or wait for, in the place of what it does."""
        index, adjusts = self.view.index[node.name], bool(scope_of(node.name))

        def instead(text: str) -> str:
            again = self._by_text.get(text) or self._by_node.get(name_in(text))
            if again is None or index in again.before:
                return text
            return again.instead_of(text, adjusts=adjusts)

        return instead

    @cached_attribute
    def _by_text(self) -> Mapping[str, _Again]:
        """Who has another flag, or another scale, in the place of one."""
        told = {text: again for again in self.calls for text in again.told}
        return {**told, **{again.call.scale: again for again in self.calls}}

    @cached_attribute
    def _by_node(self) -> Mapping[str, _Again]:
        """Who copies a node."""
        names = self.view.nodes
        return {names[i].name: a for a in self.calls for i in a.region.scaled}


def _told(view: GraphView, call: Call) -> tuple[str, ...]:
    """Return what others read of a call's scope, or wait for: flags."""
    within = {n.index for n in view.nodes if scope_of(n.name) == call.scope}
    data = (port for i in sorted(within) for port in view.output_ports(i))
    read = [
        port_text(view, port)
        for port in data
        if any(reader.node not in within for reader in view.readers(port))
    ]
    awaited = [
        f"^{view.nodes[i].name}"
        for i in sorted(within)
        if not within.issuperset(view.control_readers(i))
    ]
    return (*read, *awaited)


def _before(view: GraphView, call: Call) -> frozenset[int]:
    """Return what is run up to the end of a call, in this round of the loops around."""
    around = view.loops(port_of(view, call.scale).node)

    def sources(index: int) -> list[int]:
        node = view.nodes[index]
        is_next = node.op in NEXT_ITERATION_OPS and view.frame(index) in around
        return [] if is_next else node.sources

    adjusting = (n.index for n in view.nodes if scope_of(n.name) == call.scope)
    return frozenset(reached(adjusting, sources))


@dataclasses.dataclass
class _Again:
    """A call that is made a second time, and what is added to its graph for that.

    Attributes:
      view: of the graph as it was.
      call: for gradients.
      region: what is copied.
      before: what the first try waits for, and it itself.
      prefix: of the names of new nodes.
      told: what others read of the call's scope, or wait for.
      made: new nodes.
    """

    view: GraphView
    call: Call
    region: Region
    before: frozenset[int]
    prefix: str
    told: tuple[str, ...]
    made: list[NodeDef] = dataclasses.field(default_factory=list)
    _chosen: dict[str, str] = dataclasses.field(default_factory=dict)

    def meets(self, other: _Again) -> bool:
        """Return whether two calls share what is scaled, or wait for each other."""
        if self.call.scale == other.call.scale:
            return True
        if not self.region.all.isdisjoint(other.region.all):
            return True
        own, others = self.region.all, other.region.all
        return not (own.isdisjoint(other.before) or others.isdisjoint(self.before))

    def instead_of(self, text: str, *, adjusts: bool) -> str:
        """Return what stands for a flag, for a scaled tensor, or for the scale.

        What adjusts a loss scale, `adjusts`, reads the scale itself.
        """
        if text in self.told:
            return self._flag(text)
        if text.startswith("^") or (text == self.call.scale and adjusts):
            return text
        return self._choice(text)

    def complete(self, reading: Callable[[NodeDef], Callable[[str], str]]) -> None:
        """Add all that the new inputs need.

        `reading` says what a node reads, by what it did, if other calls are made again.
        """
        switch = self._add("switch", "Switch", [self._first, self._first], T=DT_BOOL)
        self._add("overflow", "Identity", [switch, *self._waits], T=DT_BOOL)
        self._constant("one", 1.0, DT_FLOAT, near=self.call.scale)
        for index in sorted(self.region.all):
            node = self.view.nodes[index].proto
            self._copy(node, reading(node))
        self._tell(self._are_finite())

    @property
    def _first(self) -> str:
        """Whether the first gradients are finite."""
        return self.call.is_finite

    @property
    def _waits(self) -> list[str]:
        """What is run once the state is adjusted."""
        return list(dict.fromkeys(f"^{name_in(text)}" for text in self.told))

    @property
    def _pivot(self) -> str:
        """What runs only after an overflow, once the state is adjusted."""
        return f"^{self.prefix}/overflow"

    def _choice(self, text: str) -> str:
        """Return what is the first tensor if that is finite, else the second."""
        if text not in self._chosen:
            name = f"chosen/{text.replace(':', '/')}"
            self._chosen[text] = f"{self.prefix}/{name}"
            dtype, near = _dtype(self.view, text), name_in(text)
            first = self._add(
                f"{name}/first", "Switch", [text, self._first], near=near, T=dtype
            )
            inputs = [f"{first}:1", self._copied(text)]
            self._add(name, "Merge", inputs, near=near, T=dtype, N=2)
        return self._chosen[text]

    def _copied(
        self, text: str, reading: Callable[[str], str] = lambda text: text
    ) -> str:
        """Return the text of a tensor, or of a wait, in the copy."""
        if text == self.call.scale:
            return f"{self.prefix}/one"
        if self.view.index[name_in(text)] not in self.region.all:
            return reading(text)
        if text.startswith("^"):
            return f"^{self.prefix}/{text[1:]}"
        return f"{self.prefix}/{text}"

    def _copy(self, node: NodeDef, reading: Callable[[str], str]) -> None:
        copy = NodeDef()
        copy.CopyFrom(node)
        copy.name = f"{self.prefix}/{node.name}"
        copy.attr.pop("_class", None)
        if node.op in ENTER_OPS:
            frame = node.attr["frame_name"].s.decode()
            copy.attr["frame_name"].s = f"{self.prefix}/{frame}".encode()
        given = texts_of(node)
        inputs = [self._copied(text, reading) for text in given]
        is_outside = [self._copied(text) == text for text in given]
        if all(is_outside):
            # Nothing else keeps it from running when there was no overflow.
            inputs.append(self._pivot)
        elif node.op in MERGE_OPS:
            inputs = [
                self._if_overflowed(text, before, node) if outside else text
                for text, before, outside in zip(inputs, given, is_outside, strict=True)
            ]
        copy.input[:] = inputs
        self.made.append(copy)

    def _if_overflowed(self, text: str, before: str, merge: NodeDef) -> str:
        """Return a tensor from outside that one of several is taken of.

        It stood `before` for what is now read as `text`.
        """
        if text.startswith("^"):
            return text
        dtype, near = _dtype(self.view, before), name_in(before)
        name = f"{merge.name}/{before.replace(':', '/')}"
        return self._add(name, "Identity", [text, self._pivot], near=near, T=dtype)

    def _are_finite(self) -> str:
        """Return the text of whether the second gradients are finite."""
        flags = [self._is_finite(i, t) for i, t in enumerate(self.call.gradients)]
        whole = flags[0]
        for i, flag in enumerate(flags[1:]):
            whole = self._add(f"finite/and_{i}", "LogicalAnd", [whole, flag])
        return whole

    def _is_finite(self, number: int, text: str) -> str:
        name, near, gradient = f"finite/{number}", name_in(text), self._copied(text)
        dtype = _dtype(self.view, text)
        if dtype in _PARTS:
            types = {"T": dtype, "Tout": _PARTS[dtype]}
            gradient = self._add(
                f"{name}/abs", "ComplexAbs", [gradient], near=near, **types
            )
            dtype = _PARTS[dtype]
        each = self._add(f"{name}/each", "IsFinite", [gradient], near=near, T=dtype)
        shape = self._constant(f"{name}/shape", [-1], DT_INT32, near=near)
        axis = self._constant(f"{name}/axis", [0], DT_INT32, near=near)
        types = {"T": DT_BOOL, "Tshape": DT_INT32}
        flat = self._add(f"{name}/flat", "Reshape", [each, shape], near=near, **types)
        return self._add(
            name, "All", [flat, axis], near=near, Tidx=DT_INT32, keep_dims=False
        )

    def _tell(self, finite: str) -> None:
        """Add the flags that are true also of gradients that are finite at last."""
        counted = self._count(finite)
        flag = [finite, f"^{counted}"]
        second = self._add("finite/second", "Identity", flag, T=DT_BOOL)
        known = data_of(self.told)
        for number, text in enumerate(known or [self._first]):
            inputs = [text, self._first, *self._waits]
            first = self._add(f"finite/first_{number}", "Switch", inputs, T=DT_BOOL)
            inputs = [f"{first}:1", second]
            self._add(f"flag_{number}", "Merge", inputs, T=DT_BOOL, N=2)

    def _flag(self, text: str) -> str:
        if text.startswith("^"):
            return f"^{self.prefix}/flag_0"
        return f"{self.prefix}/flag_{data_of(self.told).index(text)}"

    def _count(self, finite: str) -> str:
        """Take back the overflow that the state has counted, if any, if all is well."""
        size, place, skipped = self.call.counters
        handle, near = self.call.handle, name_in(self.call.handle)
        change = [(i == place) - (i == skipped) for i in range(size)]
        change_by = self._constant("count/change", change, DT_INT64, near=near)
        read = self._add(
            "count/read",
            "ReadVariableOp",
            [handle, self._pivot],
            near=near,
            dtype=DT_INT64,
        )
        types = {"T": DT_INT64, "num": size, "axis": 0}
        parts = self._add("count/parts", "Unpack", [read], near=near, **types)
        part = f"{parts}:{place}" if place else parts
        zero = self._constant("count/zero", 0, DT_INT64, near=near)
        known = self._add("count/known", "Equal", [part, zero], near=near, T=DT_INT64)
        both = self._add("count/both", "LogicalAnd", [known, finite], near=near)
        types = {"SrcT": DT_BOOL, "DstT": DT_INT64}
        times = self._add("count/times", "Cast", [both], near=near, **types)
        inputs = [times, change_by]
        step = self._add("count/step", "Mul", inputs, near=near, T=DT_INT64)
        inputs = [handle, step]
        return self._add(
            "count", "AssignAddVariableOp", inputs, near=near, dtype=DT_INT64
        )

    def _constant(self, name: str, value: Any, dtype: int, *, near: str) -> str:
        tensor = tf.make_tensor_proto(value, dtype)
        return self._add(
            name, "Const", [self._pivot], near=near, dtype=dtype, value=tensor
        )

    def _add(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        *,
        near: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node on the device of another one; return its text."""
        beside = self.view.nodes[self.view.index[name_in(near or self._first)]]
        name = f"{self.prefix}/{name}"
        self.made.append(new_node(op, name, inputs, beside.device, **attributes))
        return name


def _dtype(view: GraphView, text: str) -> int:
    port = port_of(view, text)
    return signature_of(view.nodes[port.node].proto).outputs[port.output].dtype


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
    graph = Graph(graph_def)
    scopes: dict[str, list[NodeDef]] = defaultdict(list)
    for node in graph_def.node:
        scopes[scope_of(node.name)].append(node)
    for node in graph_def.node:
        if AGAIN in node.attr:
            yield from _calls_of(node, graph, scopes)


def scope_of(name: str) -> str:
    """Return the scope of a node that adjusts a loss scale; "" of another node."""
    if SCALE_UPDATE not in name:
        return ""
    found = _SCOPE.match(_PREFIX.sub("", name, count=1))
    return found.group() if found else ""


def _calls_of(
    marked: NodeDef, graph: Graph, scopes: Mapping[str, Sequence[NodeDef]]
) -> Iterator[Call]:
    output, *places = map(int, marked.attr[AGAIN].s.split())
    scale = f"{marked.name}:{output}" if output else marked.name
    by_scope: dict[str, list[str]] = {}
    for text in _unscaled(scale, graph):
        for end in _rounded(text, graph):
            for reader in graph.reading(end):
                if scope := scope_of(reader.name):
                    ends = by_scope.setdefault(scope, [])
                    ends.extend([end] if end not in ends else [])
    for scope, gradients in by_scope.items():
        is_finite = _is_finite(scopes[scope], graph.nodes)
        handle = _handle(scopes[scope], graph.nodes)
        if is_finite and handle:
            counters = Counters(*places)
            yield Call(scale, scope, tuple(gradients), is_finite, counters, handle)


def _unscaled(scale: str, graph: Graph) -> Iterator[str]:
    """Yield the gradients in true units that a scale is taken out of."""

    def scales(text: str) -> Iterator[str]:
        return (node.name for node in graph.reading(text) if node.op in _SCALES)

    for text in reached([scale], scales):
        for node in graph.reading(text):
            if BARRIER in node.attr:
                yield node.name


def _rounded(text: str, graph: Graph) -> Iterator[str]:
    """Yield a gradient, and what it is as its type holds it."""

    def casts(text: str) -> Iterator[str]:
        return (node.name for node in graph.reading(text) if node.op == "Cast")

    return reached([text], casts)


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


class Region(NamedTuple):
    """What lies between the scale of a call and its gradients, by number.

    Attributes:
      scaled: nodes that are computed from the scale.
      all: the same, and whatever else is in a loop that some of them are in.
    """

    scaled: frozenset[int]
    all: frozenset[int]


def region_of(view: GraphView, call: Call) -> Region | None:
    """Return what is to be computed again; None where that might have effects."""
    scale = port_of(view, call.scale)
    own = view.frame(scale.node)

    def is_between(index: int) -> bool:
        """Say whether a node is of this round of a loop, and adjusts no loss scale."""
        node = view.nodes[index]
        if own is not None and own not in view.loops(index):
            return False
        is_next = node.op in NEXT_ITERATION_OPS and view.frame(index) == own
        return not is_next and not scope_of(node.name)

    def readers(index: int) -> list[int]:
        return [i for i in view.read_by(index) if is_between(i)]

    def sources(index: int) -> list[int]:
        return [port.node for port in view.nodes[index].inputs]

    starts = [r.node for r in view.readers(scale) if is_between(r.node)]
    after = set(reached(starts, readers))
    ends = [port_of(view, text).node for text in call.gradients]
    before = set(reached(ends, sources))
    scaled = frozenset(after & before)
    whole = scaled | _in_loops(view, scaled, view.loops(scale.node))
    if not scaled.issuperset(ends) or any(_is_unique(view.nodes[i]) for i in whole):
        return None
    return Region(scaled, whole)


def port_of(view: GraphView, text: str) -> Port:
    """Return the port that an input string names."""
    name, output = split_input(text)
    return Port(view.index[name], output)


def _in_loops(
    view: GraphView, scaled: frozenset[int], around: tuple[Frame, ...]
) -> frozenset[int]:
    """Return what belongs to the loops that some nodes are in, but not all around."""
    loops = {loop for i in scaled for loop in view.loops(i)}.difference(around)
    if not loops:
        return frozenset()
    inside = {n.index for n in view.nodes if not loops.isdisjoint(view.loops(n.index))}
    exits = {
        node.index
        for node in view.nodes
        if node.op in EXIT_OPS and node.inputs[0].node in inside
    }
    return frozenset(inside | exits)


def _is_unique(node: Node) -> bool:
    """Say whether a node cannot be run twice with the same outcome."""
    if node.op in READ_OPS:
        return False
    return has_effects(node.op) or is_random(node.op)
