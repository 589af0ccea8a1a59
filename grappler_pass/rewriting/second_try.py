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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from grappler_pass.graph.editing import data_of, name_in, new_node, texts_of
from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
    READ_OPS,
)
from grappler_pass.graph.op_traits import has_effects, is_random
from grappler_pass.graph.view import Graph
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
    for i, call in enumerate(calls_in(graph_def)):
        changed = _taken_again(changed or graph_def, call, f"{NAME}_{i}") or changed
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


def _taken_again(
    graph_def: GraphDef, call: GradientCall, prefix: str
) -> GraphDef | None:
    """Return a graph that makes a call a second time; None where it cannot.

    Args:
      graph_def: not written.
      call: for gradients.
      prefix: of the names of new nodes.
    """
    view = Graph(graph_def)
    within = [n.index for n in view.nodes if scope_of(n.name) == call.scope]
    own = frozenset(within)
    # The flags of the call's scope that others read.
    told = [
        view.text(port)
        for i in within
        for port in view.output_ports(i)
        if any(reader.node not in own for reader in view.readers(port))
    ]
    region = _region_of(view, call)
    if region is None or any(view.dtype(view.port(t)) != DT_BOOL for t in told):
        return None
    told += [
        f"^{view.nodes[i].name}"
        for i in within
        if not own.issuperset(view.control_readers(i))
    ]
    again = _Again(view, call, *region, prefix, tuple(told))
    # What is run up to the end of the call, in this round of the loops around.
    around = view.loops(view.port(call.scale).node)

    def sources(index: int) -> Sequence[int]:
        node = view.nodes[index]
        is_next = node.op in NEXT_ITERATION_OPS and view.frame(index) in around
        return [] if is_next else node.sources

    before = again.copied.union(reached(within, sources))

    def inputs_of(node: NodeDef) -> Iterable[str]:
        if view.index[node.name] in before:
            return texts_of(node)
        adjusts = bool(scope_of(node.name))
        return [again.instead_of(text, adjusts=adjusts) for text in texts_of(node)]

    return view.redirected(inputs_of, new=again.complete())


@dataclasses.dataclass
class _Again:
    """A call that is made a second time, and what is added to its graph for that.

    Attributes:
      view: of the graph as it was.
      call: for gradients.
      scaled: the nodes computed from the scale, by number.
      copied: the same, and whatever else is in a loop that some of them are in.
      prefix: of the names of new nodes.
      told: what others read of the call's scope, or wait for.
      made: new nodes.
    """

    view: Graph
    call: GradientCall
    scaled: frozenset[int]
    copied: frozenset[int]
    prefix: str
    told: tuple[str, ...]
    made: list[NodeDef] = dataclasses.field(default_factory=list)
    _chosen: dict[str, str] = dataclasses.field(default_factory=dict)

    def instead_of(self, text: str, *, adjusts: bool) -> str:
        """Return the text in the place of a flag, a scaled tensor, or the scale.

        What adjusts a loss scale, `adjusts`, reads the scale itself.
        """
        if text in self.told:
            if text.startswith("^"):
                return f"^{self.prefix}/flag_0"
            return f"{self.prefix}/flag_{data_of(self.told).index(text)}"
        if text.startswith("^"):
            return text
        if text == self.call.scale:
            return text if adjusts else self._choice(text)
        is_scaled = self.view.index[name_in(text)] in self.scaled
        return self._choice(text) if is_scaled else text

    def _choice(self, text: str) -> str:
        """Return the text of the first tensor if that is finite, else the second."""
        if text not in self._chosen:
            name = f"chosen/{text.replace(':', '/')}"
            self._chosen[text] = f"{self.prefix}/{name}"
            near, types = name_in(text), {"T": self._dtype(text)}
            inputs = [text, self.call.is_finite]
            first = self._add(f"{name}/first", "Switch", inputs, near, **types)
            inputs = [f"{first}:1", self._second(text)]
            self._add(name, "Merge", inputs, near, N=2, **types)
        return self._chosen[text]

    def _second(self, text: str) -> str:
        """Return the text of a tensor, or of a wait, in the copy; else itself."""
        if text == self.call.scale:
            return f"{self.prefix}/one"
        if self.view.index[name_in(text)] not in self.copied:
            return text
        is_wait = text.startswith("^")
        return f"{'^' * is_wait}{self.prefix}/{text.removeprefix('^')}"

    def complete(self) -> Iterator[NodeDef]:
        """Yield all that the new inputs need."""
        is_bool, first = {"T": DT_BOOL}, self.call.is_finite
        # What is run once the state is adjusted.
        waits = list(dict.fromkeys(f"^{name_in(text)}" for text in self.told))
        switch = self._add("switch", "Switch", [first, first], **is_bool)
        self._add("overflow", "Identity", [switch, *waits], **is_bool)
        self._constant("one", 1.0, DT_FLOAT, self.call.scale)
        for index in sorted(self.copied):
            self._copy(self.view.nodes[index].proto)
        flags = [self._is_finite(i, t) for i, t in enumerate(self.call.gradients)]
        finite = flags[0]
        for i, flag in enumerate(flags[1:]):
            finite = self._add(f"finite/and_{i}", "LogicalAnd", [finite, flag])
        # The flags are true also of gradients that are finite at last.
        inputs = [finite, f"^{self._count(finite)}"]
        second = self._add("finite/second", "Identity", inputs, **is_bool)
        for number, text in enumerate(data_of(self.told) or [first]):
            name, inputs = f"finite/first_{number}", [text, first, *waits]
            flag = self._add(name, "Switch", inputs, **is_bool)
            self._add(f"flag_{number}", "Merge", [f"{flag}:1", second], N=2, **is_bool)
        yield from self.made

    def _dtype(self, text: str) -> int:
        return self.view.dtype(self.view.port(text))

    @property
    def _pivot(self) -> str:
        """What runs only after an overflow, once the state is adjusted."""
        return f"^{self.prefix}/overflow"

    def _copy(self, node: NodeDef) -> None:
        copy = NodeDef()
        copy.CopyFrom(node)
        copy.name = f"{self.prefix}/{node.name}"
        copy.attr.pop("_class", None)
        if node.op in ENTER_OPS:
            frame = node.attr["frame_name"].s.decode()
            copy.attr["frame_name"].s = f"{self.prefix}/{frame}".encode()
        given = texts_of(node)
        inputs = list(map(self._second, given))
        if inputs == given:
            # Nothing else keeps it from running when there was no overflow.
            inputs.append(self._pivot)
        elif node.op in MERGE_OPS:
            for i, text in enumerate(given):
                if inputs[i] == text and not text.startswith("^"):
                    name = f"{node.name}/{text.replace(':', '/')}"
                    types = {"T": self._dtype(text)}
                    waiting = [text, self._pivot]
                    inputs[i] = self._add(
                        name, "Identity", waiting, name_in(text), **types
                    )
        copy.input[:] = inputs
        self.made.append(copy)

    def _is_finite(self, number: int, text: str) -> str:
        """Return the text of whether a second gradient is finite."""
        name, near, gradient = f"finite/{number}", name_in(text), self._second(text)
        dtype = self._dtype(text)
        if dtype in _PARTS:
            types = {"T": dtype, "Tout": _PARTS[dtype]}
            gradient = self._add(f"{name}/abs", "ComplexAbs", [gradient], near, **types)
            dtype = _PARTS[dtype]
        each = self._add(f"{name}/each", "IsFinite", [gradient], near, T=dtype)
        shape = self._constant(f"{name}/shape", [-1], DT_INT32, near)
        axis = self._constant(f"{name}/axis", [0], DT_INT32, near)
        types = {"T": DT_BOOL, "Tshape": DT_INT32}
        flat = self._add(f"{name}/flat", "Reshape", [each, shape], near, **types)
        types = {"Tidx": DT_INT32, "keep_dims": False}
        return self._add(name, "All", [flat, axis], near, **types)

    def _count(self, finite: str) -> str:
        """Take back the overflow that the state has counted, if any, if all is well."""
        size, place, skipped = self.call.counters
        handle, near = self.call.handle, name_in(self.call.handle)
        is_count = {"T": DT_INT64}

        def add(name: str, op: str, inputs: Sequence[str], **attributes: Any) -> str:
            return self._add(f"count{name}", op, inputs, near, **attributes)

        change = [(i == place) - (i == skipped) for i in range(size)]
        change_by = self._constant("count/change", change, DT_INT64, near)
        read = add("/read", "ReadVariableOp", [handle, self._pivot], dtype=DT_INT64)
        parts = add("/parts", "Unpack", [read], num=size, axis=0, **is_count)
        part = f"{parts}:{place}" if place else parts
        zero = self._constant("count/zero", 0, DT_INT64, near)
        known = add("/known", "Equal", [part, zero], **is_count)
        both = add("/both", "LogicalAnd", [known, finite])
        times = add("/times", "Cast", [both], SrcT=DT_BOOL, DstT=DT_INT64)
        step = add("/step", "Mul", [times, change_by], **is_count)
        return add("", "AssignAddVariableOp", [handle, step], dtype=DT_INT64)

    def _constant(self, name: str, value: Any, dtype: int, near: str) -> str:
        tensor = tf.make_tensor_proto(value, dtype)
        return self._add(name, "Const", [self._pivot], near, dtype=dtype, value=tensor)

    def _add(
        self, name: str, op: str, inputs: Sequence[str], near: str = "", **attrs: Any
    ) -> str:
        """Add a node on the device of another one; return its text."""
        near = name_in(near or self.call.is_finite)
        device = self.view.nodes[self.view.index[near]].device
        name = f"{self.prefix}/{name}"
        self.made.append(new_node(op, name, inputs, device, **attrs))
        return name


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
        """Return the mark of a node of which an output is the scale."""
        return " ".join(map(str, (output, *self)))


class GradientCall(NamedTuple):
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


def calls_in(graph_def: GraphDef) -> Iterator[GradientCall]:
    """Yield the calls of a graph."""
    marked = [node for node in graph_def.node if AGAIN in node.attr]
    if not marked:
        return
    graph = Graph(graph_def)
    scopes: dict[str, list[NodeDef]] = defaultdict(list)
    for node in graph_def.node:
        scopes[scope_of(node.name)].append(node)
    for node in marked:
        yield from _calls_of(node, graph, scopes)


def scope_of(name: str) -> str:
    """Return the scope of a node that adjusts a loss scale; "" of another node."""
    if SCALE_UPDATE not in name:
        return ""
    found = _SCOPE.match(_PREFIX.sub("", name, count=1))
    return found.group() if found else ""


def _calls_of(
    marked: NodeDef, graph: Graph, scopes: Mapping[str, Sequence[NodeDef]]
) -> Iterator[GradientCall]:
    output, *places = map(int, marked.attr[AGAIN].s.split())
    scale = f"{marked.name}:{output}" if output else marked.name

    def following(text: str, ops: Sequence[str]) -> list[str]:
        return [node.name for node in graph.reading(text) if node.op in ops]

    # Gradients in true units, which the scale is taken out of.
    unscaled = (
        node.name
        for text in reached([scale], lambda text: following(text, _SCALES))
        for node in graph.reading(text)
        if BARRIER in node.attr
    )
    by_scope: dict[str, dict[str, None]] = {}
    for gradient in unscaled:
        # It, and what it is as its type holds it.
        for text in reached([gradient], lambda text: following(text, ("Cast",))):
            for reader in graph.reading(text):
                if scope := scope_of(reader.name):
                    by_scope.setdefault(scope, {})[text] = None
    for scope, gradients in by_scope.items():
        names = {node.name for node in scopes[scope]}
        # What looks at the sum of all squares.
        looking = [
            node.name
            for node in scopes[scope]
            if node.op == "IsFinite"
            and name_in(node.input[0]) in names
            and graph.proto(name_in(node.input[0])).op in _SUMS
        ]
        handle = _handle(scopes[scope], graph)
        if len(looking) == 1 and handle:
            counters = Counters(*places)
            yield GradientCall(
                scale, scope, tuple(gradients), looking[0], counters, handle
            )


def _handle(within: Sequence[NodeDef], graph: Graph) -> str:
    """Return the text of the variable that holds the counters of a state."""
    names = {name_in(text) for node in within for text in texts_of(node)}

    def sources(name: str) -> list[str]:
        return [name_in(text) for text in data_of(texts_of(graph.proto(name)))]

    for name in reached(sorted(names), sources):
        node = graph.proto(name)
        is_state = LOSS_SCALE in node.attr and node.op == "ReadVariableOp"
        if is_state and node.attr["dtype"].type == DT_INT64:
            text = texts_of(node)[0]
            while (node := graph.proto(name_in(text))).op in ("Identity", "Switch"):
                text = texts_of(node)[0]
            return text
    return ""


def _region_of(
    view: Graph, call: GradientCall
) -> tuple[frozenset[int], frozenset[int]] | None:
    """Return the nodes between the scale of a call and its gradients, by number.

    These are the nodes that are computed from the scale; and the same, with whatever
    else is in a loop that some of them are in. None where that might have effects, or
    come out differently.
    """
    scale = view.port(call.scale)
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
    ends = [view.port(text).node for text in call.gradients]
    after, before = set(reached(starts, readers)), set(reached(ends, sources))
    scaled = frozenset(after & before)
    whole = set(scaled)
    loops = {loop for i in scaled for loop in view.loops(i)}
    loops.difference_update(view.loops(scale.node))
    if loops:
        inside = {
            n.index for n in view.nodes if not loops.isdisjoint(view.loops(n.index))
        }
        whole |= inside
        whole.update(
            node.index
            for node in view.nodes
            if node.op in EXIT_OPS and node.inputs[0].node in inside
        )
    ops = {view.nodes[i].op for i in whole} - READ_OPS
    if not scaled.issuperset(ends) or any(has_effects(o) or is_random(o) for o in ops):
        return None
    return scaled, frozenset(whole)
