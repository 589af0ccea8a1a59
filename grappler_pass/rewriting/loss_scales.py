"""Take the scaling of losses out of a graph that has no use for it.

Before   scale * seed --> ... --> gradient / scale --> finite? --> update
After    seed --> ... --> gradient --> update

A scale of 1 changes no gradient, whatever it is: so every scale becomes 1, no product
with it stays, and whatever reads whether gradients are finite reads that they are, as
late as before. Nothing is counted, and infinities go where they go without scaling.

Not done: where part of what is scaled or unscaled may be elsewhere, in a function that
is called or around the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence, Set

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_BOOL, DT_FLOAT

from grappler_pass.annotations import BARRIER, LOSS_SCALE, SCALE, SCALE_UPDATE
from grappler_pass.errors import AmpError
from grappler_pass.graph.editing import Graph, name_in, new_constant, texts_of
from grappler_pass.graph.op_table import ENTER_OPS, MERGE_OPS
from grappler_pass.graph.view import Item
from grappler_pass.graph.walks import function_attrs, reached

# What is 1 where the scale is.
_KEEPING_ONE = ENTER_OPS | {"Cast", "Identity", "Reciprocal", "Snapshot", "Switch"}
# What a state passes on its way to where the scale is taken out of it.
_PASSING_ON = ENTER_OPS | MERGE_OPS | {"Identity", "Switch"}
# What shows within the scope whether gradients are finite.
_FLAGS = MERGE_OPS | {"Equal", "Identity"}


class _NotWholeError(AmpError):
    """A part of what is scaled may be elsewhere."""


class _Scaled:
    """A graph in which losses are scaled.

    Attributes:
      graph: all of it.
      updating: the nodes that adjust a loss scale, by name.
      outside: those that do not.
    """

    def __init__(self, graph_def: GraphDef) -> None:
        self.graph = Graph(graph_def)
        nodes = self.graph.nodes
        self.updating = {name: nodes[name] for name in nodes if SCALE_UPDATE in name}
        self.outside = {n: nodes[n] for n in nodes if n not in self.updating}

    def reading(self, text: str) -> list[NodeDef]:
        """Return the nodes outside that read a tensor."""
        nodes = self.graph.reading(text)
        return [node for node in nodes if node.name in self.outside]


def without_loss_scales(graph_def: GraphDef, item: Item) -> GraphDef | None:
    """Return a graph in which no loss is scaled and no step skipped.

    None where there is no loss scale, or not the whole of it. The given graph is not
    written.
    """
    graph = _Scaled(graph_def)
    scales = [node for node in graph.outside.values() if SCALE in node.attr]
    if not scales or not graph.updating:
        return None
    try:
        return _without(graph, scales, item)
    except _NotWholeError:
        return None


def _without(graph: _Scaled, scales: Sequence[NodeDef], item: Item) -> GraphDef:
    kept = item.untouchable | graph.graph.awaited
    _check_calls(graph)
    _check_states(graph)
    ones = _ones(graph, scales)
    _check_unscaled(graph, ones)
    products = {
        node.name: other
        for node in graph.outside.values()
        if node.name not in kept
        for other in _factor_beside_one(node, ones)
    }
    gone = _gone(graph, kept)
    instead = _Instead(graph, products, gone)
    for node in scales:
        instead.put_one(node)
    graph.graph.redirect(instead.inputs_of, {*products, *gone})
    for node in instead.made.values():
        graph.graph.add(node)
    return graph.graph.to_graph_def()


def _check_calls(graph: _Scaled) -> None:
    """Raise if the graph calls functions, which may scale or unscale for themselves."""
    for node in graph.outside.values():
        if any(function_attrs(node)):
            raise _NotWholeError(node.name)


def _check_states(graph: _Scaled) -> None:
    """Raise if a state is read for more than to scale gradients here."""
    states = [
        node.name
        for node in graph.outside.values()
        if LOSS_SCALE in node.attr and DT_FLOAT in (_type(node, "dtype"), _type(node))
    ]

    def readers(name: str) -> Sequence[NodeDef]:
        return (*graph.reading(name), *graph.reading(f"{name}:1"))

    def passed_on(name: str) -> list[str]:
        return [node.name for node in readers(name) if node.op in _PASSING_ON]

    for name in reached(states, passed_on):
        for node in readers(name):
            if node.op not in _PASSING_ON and _scale_of(node) is None:
                raise _NotWholeError(node.name)


def _ones(graph: _Scaled, scales: Sequence[NodeDef]) -> set[str]:
    """Return the outputs that are 1 where the scales are."""
    ones: set[str] = set()
    waiting = [text for text in map(_scale_of, scales) if text is not None]
    while waiting:
        text = waiting.pop()
        ones.add(text)
        for node in graph.reading(text):
            factors = node.op == "Mul" and ones.issuperset(texts_of(node)[:2])
            outputs = {node.name} if factors or node.op in _KEEPING_ONE else set()
            outputs |= {f"{node.name}:1"} if node.op == "Switch" else set()
            waiting.extend(outputs - ones)
    return ones


def _check_unscaled(graph: _Scaled, ones: Set[str]) -> None:
    """Raise if gradients are unscaled by what comes from elsewhere."""
    for node in graph.outside.values():
        if BARRIER in node.attr and ones.isdisjoint(texts_of(node)):
            raise _NotWholeError(node.name)


def _factor_beside_one(node: NodeDef, ones: Collection[str]) -> Iterator[str]:
    """Yield what a product is where its other factor is a scalar 1."""
    if node.op == "Mul":
        others = [text for text in texts_of(node)[:2] if text not in ones]
        yield from others if len(others) == 1 else ()


def _gone(graph: _Scaled, kept: Collection[str]) -> set[str]:
    """Return what nobody needs if it is not asked whether gradients are finite."""
    staying = set()
    texts = (text for node in graph.outside.values() for text in texts_of(node))
    for text in dict.fromkeys(texts):
        node = graph.updating.get(name_in(text))
        if node is None or text.startswith("^"):
            continue
        if node.op == "Const" and not node.input:
            staying.add(node.name)
        elif text != node.name or not _is_flag(node):
            raise _NotWholeError(node.name)
    for name in graph.updating.keys() & kept:
        if graph.updating[name].op != "NoOp":
            raise _NotWholeError(name)
        staying.add(name)
    return graph.updating.keys() - staying


def _is_flag(node: NodeDef) -> bool:
    return node.op in _FLAGS and (node.op == "Equal" or _type(node) == DT_BOOL)


@dataclasses.dataclass(frozen=True)
class _Instead:
    """What nodes read and wait for in the new graph.

    Attributes:
      made: new nodes by what is read in the old graph: ones; and flags, True, by what
        they wait for.
    """

    graph: _Scaled
    products: Mapping[str, str]
    gone: Collection[str]
    made: dict[Hashable, NodeDef] = dataclasses.field(default_factory=dict)

    def put_one(self, scale: NodeDef) -> None:
        """Have a constant read in the place of a scale, in the same loop or branch."""
        text = _scale_of(scale)
        assert text is not None, "looked at before"
        controls = [f"^{name_in(source)}" for source in texts_of(scale)]
        self.made[text] = new_constant(
            f"{scale.name}/one", 1.0, inputs=controls, device=scale.device
        )

    def inputs_of(self, node: NodeDef) -> Iterator[str]:
        """Yield what a node that stays reads and waits for."""
        return map(self._input, texts_of(node))

    def _input(self, text: str) -> str:
        name = name_in(text)
        made = self._flag(name) if name in self.gone else self.made.get(text)
        if made is not None:
            return f"^{made.name}" if text.startswith("^") else str(made.name)
        if name not in self.products:
            return text
        source = self._input(self.products[name])
        return f"^{name_in(source)}" if text.startswith("^") else source

    def _flag(self, name: str) -> NodeDef:
        """Return a constant in the place of a node that is gone, just as late."""
        node = self.graph.updating[name]
        before = frozenset(self._before(node))
        if before not in self.made:
            controls = sorted({f"^{name_in(self._input(text))}" for text in before})
            number = sum(isinstance(key, frozenset) for key in self.made)
            self.made[before] = new_constant(
                f"tf_amp_finite/{number}", True, inputs=controls, device=node.device
            )
        return self.made[before]

    def _before(self, node: NodeDef) -> Iterator[str]:
        """Yield what a node that is gone has waited for, of what stays."""

        def sources(node: NodeDef) -> list[str]:
            return [name_in(text) for text in texts_of(node)]

        def before(name: str) -> list[str]:
            return sources(self.graph.updating[name]) if name in self.gone else []

        awaited = reached(sources(node), before)
        return (f"^{name}" for name in awaited if name not in self.gone)


def _scale_of(node: NodeDef) -> str | None:
    """Return the output of a node that is a scale which can go."""
    output = node.attr[SCALE].i if SCALE in node.attr else -1
    if output < 0:
        return None
    return f"{node.name}:{output}" if output else node.name


def _type(node: NodeDef, name: str = "T") -> int:
    return int(node.attr[name].type) if name in node.attr else 0
