"""Take gradients again that overflowed, without the loss scale, where they are used.

Before   scale --> ... --> gradient --> finite? --> adjusts the scale
                           gradient --> reader
After    1, if not finite --> ... --> gradient'
         Merge(gradient if finite, gradient') --> reader

What lies between the scale and the gradients is copied. The copy starts from a constant
that runs only after an overflow, so that all else in it does. Whoever reads any of what
is copied, as gradients of gradients do, reads the copy then; whoever asks whether the
gradients are finite is told of the second ones, and so is the state, which has lowered
its scale by then: an overflow that did no harm is not counted as a skipped step.

Not done: where a graph holds an optimizer's step or an assignment that is skipped,
since a later step makes good for it; where the copy might have effects, or draws random
numbers; functions that are called and stay so, and what XLA compiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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
from tensorflow.python.framework import tensor_util

from grappler_pass.annotations import FINITE_BRANCH, SCALE_UPDATE, SKIPPED_ASSIGNMENT
from grappler_pass.graph.op_table import ENTER_OPS, MERGE_OPS, NEXT_ITERATION_OPS
from grappler_pass.graph.type_slots import signature_of
from grappler_pass.graph.view import GraphView, Port
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting.named_graphs import copied, name_in, texts_of
from grappler_pass.rewriting.second_try.calls import Call, calls_in, scope_of
from grappler_pass.rewriting.second_try.regions import Region, port_of, region_of

NAME = "tf_amp_again"
_PARTS = {DT_COMPLEX64: DT_FLOAT, DT_COMPLEX128: DT_DOUBLE}


def with_second_tries(graph_def: GraphDef) -> GraphDef | None:
    """Return a graph that takes gradients again that overflowed; None for the same.

    The given graph is not written.
    """
    if skips(graph_def.node) or tries_again(graph_def.node):
        return None
    changed = None
    for number, call in enumerate(calls_in(graph_def)):
        changed = _with_second_try(changed or graph_def, call, number) or changed
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


def _with_second_try(graph_def: GraphDef, call: Call, number: int) -> GraphDef | None:
    view = GraphView.from_graph_def(graph_def)
    region = region_of(view, call)
    if region is None:
        return None
    leaving = [node for node in graph_def.node if scope_of(node.name) != call.scope]
    told = _told(leaving, call)
    if any(_dtype(view, text) != DT_BOOL for text in told if text[0] != "^"):
        return None
    before = _before(view, call) | region.all
    again = _Again(view, call, region, before, f"{NAME}_{number}", told)
    result = copied(graph_def, again.inputs_of)
    again.complete()
    result.node.extend(again.made)
    return result


def _told(leaving: Sequence[NodeDef], call: Call) -> tuple[str, ...]:
    """Return what others read of a call's scope, or wait for: flags."""
    texts = (text for node in leaving for text in texts_of(node))
    flags = (text for text in texts if scope_of(name_in(text)) == call.scope)
    return tuple(dict.fromkeys(flags))


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

    def inputs_of(self, node: NodeDef) -> Iterator[str]:
        """Yield what a node of the graph is to read and to wait for."""
        if self.view.index[node.name] in self.before:
            yield from texts_of(node)
            return
        adjusts = bool(scope_of(node.name))
        for text in texts_of(node):
            if text in self.told:
                yield self._flag(text)
            elif self._is_scaled(text) or (text == self.call.scale and not adjusts):
                yield self._choice(text)
            else:
                yield text

    def complete(self) -> None:
        """Add all that the new inputs need."""
        switch = self._add("switch", "Switch", [self._first, self._first], T=DT_BOOL)
        waits = [f"^{name_in(text)}" for text in self.told]
        self._add("overflow", "Identity", [switch, *dict.fromkeys(waits)], T=DT_BOOL)
        self._constant("one", 1.0, DT_FLOAT, near=self.call.scale)
        for index in sorted(self.region.all):
            self._copy(index)
        self._tell(self._are_finite())

    @property
    def _first(self) -> str:
        """Whether the first gradients are finite."""
        return self.call.is_finite

    @property
    def _pivot(self) -> str:
        """What runs only after an overflow, once the state is adjusted."""
        return f"^{self.prefix}/overflow"

    def _is_scaled(self, text: str) -> bool:
        index = self.view.index.get(name_in(text))
        return index in self.region.scaled and not text.startswith("^")

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

    def _copied(self, text: str) -> str:
        """Return the text of a tensor, or of a wait, in the copy."""
        if text == self.call.scale:
            return f"{self.prefix}/one"
        if self.view.index[name_in(text)] not in self.region.all:
            return text
        if text.startswith("^"):
            return f"^{self.prefix}/{text[1:]}"
        return f"{self.prefix}/{text}"

    def _copy(self, index: int) -> None:
        node = self.view.nodes[index].proto
        copy = NodeDef()
        copy.CopyFrom(node)
        copy.name = f"{self.prefix}/{node.name}"
        copy.attr.pop("_class", None)
        if node.op in ENTER_OPS:
            frame = node.attr["frame_name"].s.decode()
            copy.attr["frame_name"].s = f"{self.prefix}/{frame}".encode()
        texts = texts_of(node)
        inputs = [self._copied(text) for text in texts]
        if inputs == texts:
            # Nothing else keeps it from running when there was no overflow.
            inputs.append(self._pivot)
        elif node.op in MERGE_OPS:
            inputs = [
                self._if_overflowed(text, node) if text == given else text
                for text, given in zip(inputs, texts, strict=True)
            ]
        copy.input[:] = inputs
        self.made.append(copy)

    def _if_overflowed(self, text: str, merge: NodeDef) -> str:
        """Return a tensor from outside that one of several is taken of."""
        if text.startswith("^"):
            return text
        dtype, near = _dtype(self.view, text), name_in(text)
        name = f"{merge.name}/{text.replace(':', '/')}"
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
        known = [text for text in self.told if not text.startswith("^")]
        for number, text in enumerate(known or [self._first]):
            inputs = [text, self._first]
            first = self._add(f"finite/first_{number}", "Switch", inputs, T=DT_BOOL)
            inputs = [f"{first}:1", second]
            self._add(f"flag_{number}", "Merge", inputs, T=DT_BOOL, N=2)

    def _flag(self, text: str) -> str:
        if text.startswith("^"):
            return f"^{self.prefix}/flag_0"
        known = [each for each in self.told if not each.startswith("^")]
        return f"{self.prefix}/flag_{known.index(text)}"

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
        tensor = tensor_util.make_tensor_proto(value, dtype)
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
        node = NodeDef(
            name=f"{self.prefix}/{name}", op=op, device=beside.device, input=inputs
        )
        _set_attributes(node, attributes)
        self.made.append(node)
        return str(node.name)


def _set_attributes(node: NodeDef, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        attr = node.attr[name]
        if name == "value":
            attr.tensor.CopyFrom(value)
        elif name in ("N", "num", "axis"):
            attr.i = value
        elif isinstance(value, bool):
            attr.b = value
        else:
            attr.type = value


def _dtype(view: GraphView, text: str) -> int:
    port: Port = port_of(view, text)
    return signature_of(view.nodes[port.node].proto).outputs[port.output].dtype
