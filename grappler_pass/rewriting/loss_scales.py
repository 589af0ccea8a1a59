"""Loss scales cost little: graphs without use for them have none, branches no Switches.

Take the scaling of losses out of a graph that has no use for it:

Before   scale * seed --> ... --> gradient / scale --> finite? --> update
After    1 * seed --> ... --> gradient / 1 --> True --> update

A scale of 1 changes no gradient: so every scale becomes a constant 1, and whatever
reads whether gradients are finite reads a constant True, as late as before. Nothing is
counted, and infinities go where they go without scaling. TensorFlow's own passes, which
visit the graph once more, fold the products; of a branch they leave its predicate and
its end (docs/overflows.md).

Not done: where part of what is scaled or unscaled may be elsewhere, in a function that
is called or around the graph.
"""

from __future__ import annotations

import functools
from collections.abc import (
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import chain
from typing import NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_BOOL, DT_FLOAT

from grappler_pass.annotations import BARRIER, LOSS_SCALE, SCALE, SCALE_UPDATE, STAMP
from grappler_pass.graph.editing import data_of, name_in, new_constant, texts_of
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS, ENTER_OPS, MERGE_OPS
from grappler_pass.graph.view import Graph, Item
from grappler_pass.graph.walks import function_attrs, reached

# What is 1 where the scale is.
_KEEPING_ONE = ENTER_OPS | {"Cast", "Identity", "Reciprocal", "Snapshot", "Switch"}
# What a state passes on its way to where the scale is taken out of it.
_PASSING_ON = ENTER_OPS | MERGE_OPS | {"Identity", "Switch"}
# What shows within the scope whether gradients are finite.
_FLAGS = MERGE_OPS | {"Equal", "Identity"}


def without_loss_scales(graph_def: GraphDef, item: Item) -> GraphDef | None:
    """Return a graph in which no loss is scaled and no step skipped.

    None where there is no loss scale, or not the whole of it. The given graph is not
    written.
    """
    nodes: dict[str, NodeDef] = {node.name: node for node in graph_def.node}
    updating = {name: node for name, node in nodes.items() if SCALE_UPDATE in name}
    outside = [node for name, node in nodes.items() if name not in updating]
    scales = {_scale_of(node): node for node in outside if SCALE in node.attr}
    if not scales or not updating:
        return None
    graph = Graph(graph_def)
    if not _are_whole(scales, outside, graph):
        return None
    staying = _staying(updating, outside, item.untouchable | graph.awaited)
    if staying is None:
        return None
    gone = updating.keys() - staying
    # By what is read in the old graph; of what is gone, by what it waited for.
    instead: dict[object, NodeDef] = {}
    for text, scale in scales.items():
        # In the same loop or branch as the scale; what it is divided by is not needed.
        controls = [f"^{name_in(source)}" for source in texts_of(scale)[:1]]
        instead[text] = new_constant(
            f"{scale.name}/one", 1.0, inputs=controls, device=scale.device
        )

    def sources(name: str) -> list[str]:
        return [name_in(t) for t in texts_of(nodes[name])] if name in gone else []

    @functools.cache
    def waited_for(name: str) -> frozenset[str]:
        return frozenset(reached(sources(name), sources)) - gone

    def read(text: str) -> str:
        name = name_in(text)
        if name not in gone:
            return str(instead[text].name) if text in instead else text
        before = waited_for(name)
        if before not in instead:
            instead[before] = new_constant(
                f"tf_amp_finite/{len(instead) - len(scales)}",
                True,
                inputs=sorted(f"^{each}" for each in before),
                device=nodes[name].device,
            )
        return f"{'^' if text.startswith('^') else ''}{instead[before].name}"

    return graph.redirected(
        lambda node: map(read, texts_of(node)), gone, new=instead.values()
    )


def _scale_of(node: NodeDef) -> str | None:
    """Return the output of a node that is a scale which can go."""
    output = node.attr[SCALE].i if SCALE in node.attr else -1
    if output < 0:
        return None
    return f"{node.name}:{output}" if output else node.name


def _are_whole(
    scales: Mapping[str | None, NodeDef], outside: Sequence[NodeDef], graph: Graph
) -> bool:
    """Return whether all that is scaled, and all that unscales, is in this graph.

    Functions that are called may scale or unscale for themselves. A state may be read
    only to scale gradients here, and these may be unscaled only by such scales.
    """
    if None in scales or any(any(function_attrs(node)) for node in outside):
        return False

    def readers(text: str) -> list[NodeDef]:
        return [n for n in graph.reading(text) if SCALE_UPDATE not in n.name]

    def outputs_of(nodes: Iterable[NodeDef]) -> Iterator[str]:
        for node in nodes:
            yield node.name
            yield from [f"{node.name}:1"] if node.op == "Switch" else ()

    def passed_on(text: str) -> Iterator[str]:
        return outputs_of(n for n in readers(text) if n.op in _PASSING_ON)

    states = [
        node.name
        for node in outside
        if LOSS_SCALE in node.attr and DT_FLOAT in (_type(node, "dtype"), _type(node))
    ]
    for text in reached(states, passed_on):
        for node in readers(text):
            if node.op not in _PASSING_ON and _scale_of(node) is None:
                return False
    ones: set[str] = set()

    def still_one(text: str) -> Iterator[str]:
        return outputs_of(
            node
            for node in readers(text)
            if node.op in _KEEPING_ONE
            or (node.op == "Mul" and ones.issuperset(texts_of(node)[:2]))
        )

    for text in reached(map(str, scales), still_one):
        ones.add(text)
    barriers = (node for node in outside if BARRIER in node.attr)
    return not any(ones.isdisjoint(texts_of(node)) for node in barriers)


def _staying(
    updating: Mapping[str, NodeDef], outside: Sequence[NodeDef], kept: Collection[str]
) -> set[str] | None:
    """Return the nodes that stay of those that adjust a scale.

    None where something other is read than whether gradients are finite.
    """
    staying = updating.keys() & kept
    if any(updating[name].op != "NoOp" for name in staying):
        return None
    for text in {text for node in outside for text in data_of(texts_of(node))}:
        node = updating.get(name_in(text))
        if node is None:
            continue
        if node.op == "Const" and not node.input:
            staying.add(node.name)
            continue
        is_bool = node.op == "Equal" or _type(node) == DT_BOOL
        if text != node.name or node.op not in _FLAGS or not is_bool:
            return None
    return staying


def _type(node: NodeDef, name: str = "T") -> int:
    return int(node.attr[name].type) if name in node.attr else 0


_BOUND = CONTROL_FLOW_OPS | {"_Retval"}


class _Pivots(NamedTuple):
    """Of one predicate: the nodes that run in either branch, and what they go by."""

    device: str
    switch: str
    names: tuple[str, str]


def lighten_branches(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph without the Switches of some branches; None where all stay.

    They are those with a part of their names. The given graph is not written.

    Before   x --> Switch(predicate) --> Identity --> node
    After    x --> node, which waits for the branch's pivot

    The pivot runs only if the branch is taken, and so does what waits for it. A branch
    that updates hundreds of variables is spared a Switch, and often an Identity, for
    each.

    Not done: branches without a pivot on the same device; loops; what leads straight
    into a Merge or a loop; what is fetched, or colocated with; what a node waits for
    without using it; what is used on another device, and would be sent there in vain.
    """
    nodes = [node for node in graph_def.node if part_of_name in node.name]
    if not nodes:
        return None
    graph = Graph(graph_def)
    pivots = _pivots(graph, nodes)
    kept = item.untouchable | graph.awaited
    # By output: the input that it passes on, and what to wait for instead.
    outside: dict[str, list[str]] = {}
    # Switches, then what passes their outputs on.
    for op in ("Switch", "Identity"):
        for node in nodes:
            if node.op == op and node.name not in kept:
                outside.update(_outside(node, pivots, graph, outside))
    if not outside:
        return None

    def inputs_of(node: NodeDef) -> Iterator[str]:
        return chain.from_iterable(outside.get(t, [t]) for t in texts_of(node))

    return graph.redirected(inputs_of, set(map(name_in, outside)))


def _pivots(graph: Graph, nodes: Sequence[NodeDef]) -> dict[str, _Pivots]:
    """Return the pivots by predicate."""
    loops = {node.name for node in graph.nodes if node.op == "LoopCond"}

    def pivot(switch: NodeDef, output: str) -> str:
        """Return the control input that stands for a branch; "" where there is none."""
        return next(
            (
                f"^{reader.name}"
                for reader in graph.reading(output)
                if reader.op == "Identity" and reader.device == switch.device
            ),
            "",
        )

    found: dict[str, _Pivots] = {}
    for node in nodes:
        if node.op == "Switch" and node.input[0] == node.input[1] not in loops:
            names = pivot(node, node.name), pivot(node, f"{node.name}:1")
            pivots = _Pivots(node.device, node.name, names)
            found.setdefault(node.input[1], pivots)
    return found


def _outside(
    node: NodeDef,
    pivots: Mapping[str, _Pivots],
    graph: Graph,
    known: Mapping[str, list[str]],
) -> dict[str, list[str]]:
    """Return the inputs in the place of a Switch's outputs, or an Identity's."""
    outputs = (node.name, f"{node.name}:1")
    readers = list(chain.from_iterable(map(graph.reading, outputs)))
    is_bound = any(r.op in _BOUND or r.device != node.device for r in readers)
    if not readers or is_bound or graph.reading(f"^{node.name}"):
        return {}
    if node.op == "Identity":
        before = known.get(node.input[0])
        return {node.name: [*before, *node.input[1:]]} if before else {}
    pivot = pivots.get(node.input[1])
    if pivot is None or node.name == pivot.switch or node.device != pivot.device:
        return {}
    sides = dict(zip(outputs, pivot.names, strict=True))
    if any(graph.reading(output) and not side for output, side in sides.items()):
        return {}
    return {
        output: [node.input[0], side, *node.input[2:]]
        for output, side in sides.items()
        if side
    }


def merge_equal_reads(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph in which equal reads are one; None where no two are equal.

    They are those with a part of their names. The given graph is not written.

    Before   handle, ^pivot --> read --> a;  handle, ^pivot --> another read --> b
    After    handle, ^pivot --> read --> a and b

    What waits for the same nodes may run at the same moment, so that one value serves
    all; a write that waits for one of the reads waits for the one that stays.
    TensorFlow merges what is computed alike from equal values, but takes no two reads
    for equal.

    An optimizer that computes its rate anew for every variable then does so once.

    Not done: what the caller relies on, and may feed with something else than the
    variable; reads that the pass is to treat differently, by an attribute of its own.
    """
    first: dict[Hashable, str] = {}
    instead: dict[str, str] = {}
    for node in graph_def.node:
        if node.op != "ReadVariableOp" or part_of_name not in node.name:
            continue
        if node.name in item.untouchable:
            continue
        handle, *controls = node.input
        marks = frozenset(
            (name, mark.SerializeToString())
            for name, mark in node.attr.items()
            if name.startswith(STAMP)
        )
        dtype = node.attr["dtype"].type
        what_is_read = handle, frozenset(controls), dtype, node.device, marks
        same = first.setdefault(what_is_read, node.name)
        if same != node.name:
            instead[node.name] = same
    if not instead:
        return None
    graph = Graph(graph_def)
    for name in graph.awaited:
        instead.pop(name, None)
    if not instead:
        return None
    instead |= {f"^{name}": f"^{same}" for name, same in instead.items()}
    return graph.redirected(
        lambda node: [instead.get(t.removesuffix(":0"), t) for t in node.input],
        graph.index.keys() & instead.keys(),
    )
