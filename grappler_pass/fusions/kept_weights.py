"""Keep between calls what a graph computes of its variables alone, as in inference.

Before   w --> Mul(scale) --> Cast --> product(x, .)
After    found, token = TfAmpRecall(w, scale); old, none = Switch(token, found)
         w --> Mul(scale, after none) --> Cast; new = TfAmpKeep(none, w, scale, Cast)
         TfAmpKept(Merge(old, new)) --> product(x, .)

The kernels (kept_weights.c) see by its memory whether a variable has been written
since, by whomever, so that what is kept is what would be computed. The values of one
device belong together: if one of their variables has changed, all are computed again.
Where nothing has, what computes them is dead, as in the branch that is not taken.

Not done: where this graph writes the variables; in loops and branches; for variables
that other machines or other devices than CPUs hold; where shapes are open; for so
little that looking for it takes longer. Whether a process is one that keeps weights is
the caller's to say (`Settings.keeps_weights`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.types_pb2 import DT_INT64

from grappler_pass.annotations import mark
from grappler_pass.eligibility.reads import cast_types, is_cast, unwritten_reads
from grappler_pass.eligibility.regions import connected
from grappler_pass.fusions import KEPT_WEIGHTS
from grappler_pass.fusions.matching import PricedGraph
from grappler_pass.graph.editing import new_node
from grappler_pass.graph.op_table import (
    CONSTANT_OPS,
    CONTROL_FLOW_OPS,
    IDENTITY_OPS,
    INPUT_OPS,
    PRODUCT_OPS,
    RECURRENT_OPS,
    VARIABLE_OPS,
)
from grappler_pass.graph.op_traits import has_effects, is_random, why_fixed
from grappler_pass.graph.shapes import proto_from_shape, static
from grappler_pass.graph.type_slots import DTYPE_NAMES, FLOATING
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.kept_kernels import KEEP, KEPT, RECALL
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.prices import NODE_SECONDS

# What one variable, and one value of variables, takes in each call, in nodes.
_NODES_PER_SOURCE, _NODES_PER_VALUE = 0.3, 1
# What it takes in each call to look for them, however few they are.
_CALL_SECONDS = 2e-5
# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 2.0
STEM = "tf_amp_kept"


class Kept(NamedTuple):
    """Nodes that compute with each other, and depend on variables alone.

    Attributes:
      nodes: by number, inputs first.
      sources: values of variables that they read.
      values: what others read of them.
      device: that they are on.
      seconds: saved per call where no variable has changed; 0.0 if uncertain.
    """

    nodes: tuple[int, ...]
    sources: tuple[Port, ...]
    values: tuple[Port, ...]
    device: str
    seconds: float = 0.0


def _region(view: Graph) -> tuple[set[int], list[int]]:
    """Return what of a graph its variables alone decide.

    That are nodes that pass a variable's value on, unchanged, and nodes that compute
    with those alone, inputs first.
    """
    sources: set[int] = set()
    inner: dict[int, None] = {}
    reads = unwritten_reads(view)

    def is_known(node: Node, place: tuple[str, str]) -> bool:
        if node.op in CONSTANT_OPS:
            return all(i in sources or i in inner for i in node.controls)
        return (node.index in sources or node.index in inner) and node.place == place

    for i in view.order:
        node = view.nodes[i]
        is_remote = "/job:" in node.device and "/job:localhost" not in node.device
        if (
            node.device_type != "CPU"
            or is_remote
            or view.frame(i) is not None
            or node.controls
            or not node.inputs
        ):
            continue
        operands = [view.nodes[port.node] for port in node.inputs]
        if i in reads and _is_always_there(view, operands[0]):
            sources.add(i)
        elif (
            not (node.op in CONTROL_FLOW_OPS or has_effects(node.op))
            and not (is_random(node.op) or why_fixed(node.op, is_listed=False))
            and node.name not in view.item.untouchable
            and all(is_known(each, node.place) for each in operands)
            and any(each.op not in CONSTANT_OPS for each in operands)
        ):
            if node.op in IDENTITY_OPS and operands[0].index in sources:
                sources.add(i)
            else:
                inner[i] = None
    return sources, list(inner)


def _is_always_there(view: Graph, source: Node) -> bool:
    """Return whether a variable is there in each call."""
    while source.op in IDENTITY_OPS and not source.controls:
        source = view.nodes[source.inputs[0].node]
    return source.op in VARIABLE_OPS | INPUT_OPS and not source.controls


def is_wanted(settings: Settings) -> bool:
    """Return whether graphs are to keep weights: not where XLA compiles them."""
    is_chosen = settings.keeps_weights and KEPT_WEIGHTS in settings.fusions
    return is_chosen and not settings.fuses


def ports_of_variables(view: Graph) -> frozenset[Port]:
    """Return what depends on variables alone, before types are chosen."""
    nodes = itertools.chain(*_region(view))
    return frozenset(port for i in nodes for port in view.output_ports(i))


def weights_of(view: Graph, settings: Settings) -> frozenset[Port]:
    """Return what products read that is kept in 16 bits, whatever reads it else."""
    if not is_wanted(settings):
        return frozenset()
    products = PRODUCT_OPS | RECURRENT_OPS
    return frozenset(
        port
        for port in ports_of_variables(view)
        if any(view.nodes[r.node].op in products for r in view.readers(port))
    )


def found(graph: PricedGraph) -> list[Kept]:
    """Return what of a graph with its types chosen can be kept.

    Args:
      graph: may lack shapes of casts.

    Returns:
      What saves time is better kept than computed.
    """
    view = graph.view
    sources, inner = _region(view)
    place = {i: number for number, i in enumerate(inner)}
    pairs = [
        (place.get(port.node, number), number)
        for i, number in place.items()
        for port in view.nodes[i].inputs
    ]
    # Those together that compute with each other's results, inputs first.
    components = (tuple(inner[n] for n in group) for group in connected(pairs))
    found = [each for nodes in components if (each := _kept(graph, sources, nodes))]
    if sum(each.seconds for each in found) > _LEAST_RATIO * _CALL_SECONDS:
        return found
    return [each._replace(seconds=0.0) for each in found]


def _kept(graph: PricedGraph, sources: Set[int], nodes: tuple[int, ...]) -> Kept | None:
    """Return what can be kept of some nodes, unless something waits for them."""
    view, own = graph.view, frozenset(nodes)
    for waiting in (w for i in nodes for w in view.control_readers(i)):
        # A constant may, a folded shape for instance, if only these nodes read it:
        # whoever else read it would wait for what is not computed.
        readers = (*view.read_by(waiting), *view.control_readers(waiting))
        if view.nodes[waiting].op not in CONSTANT_OPS or not own.issuperset(readers):
            return None
    operands = (port for i in nodes for port in view.nodes[i].inputs)
    read = tuple(dict.fromkeys(port for port in operands if port.node in sources))
    values = tuple(
        port
        for i in nodes
        for port in view.output_ports(i)
        if any(reader.node not in own for reader in view.readers(port))
    )
    if not values or any(_shape(graph, port) is None for port in values):
        return None
    saved = sum(_seconds(view.nodes[i], graph) for i in nodes)
    added = len(read) * _NODES_PER_SOURCE + len(values) * _NODES_PER_VALUE
    spent = added * NODE_SECONDS
    seconds = saved - spent if saved >= _LEAST_RATIO * spent else 0.0
    return Kept(nodes, read, values, view.nodes[nodes[0]].device, seconds)


def _seconds(node: Node, graph: PricedGraph) -> float:
    shape = _shape(graph, Port(node.index, 0))
    if shape is None:
        return 0.0
    if not is_cast(node):
        return graph.pass_seconds(node, node.op, shape)
    types = cast_types(node)
    if not FLOATING.issuperset(types):
        return 0.0
    source, target = (DTYPE_NAMES[dtype] for dtype in types)
    cast = graph.model(node).cast_price(math.prod(shape), source, target)
    return cast.seconds + NODE_SECONDS


def _shape(graph: PricedGraph, port: Port) -> tuple[int, ...] | None:
    """Return a static shape, of a cast that of what it reads; None where it is open."""
    shape = graph.shape(port)
    node = graph.view.nodes[port.node]
    while shape is None and node.op == "Cast":
        shape = graph.shape(node.inputs[0])
        node = graph.view.nodes[node.inputs[0].node]
    return static(shape)


def rewritten(graph: PricedGraph, found: Sequence[Kept]) -> GraphDef:
    """Return a copy of a graph that keeps what was found in it."""
    groups: dict[str, list[Kept]] = {}
    for each in found:
        groups.setdefault(each.device, []).append(each)
    edited = graph.view.copy()
    for number, group in enumerate(groups.values()):
        stem = f"{STEM}_{number}" if number else STEM
        while f"{stem}/recall" in graph.view.index:
            stem += "_"
        _keep(group, graph, edited, stem)
    return edited.to_graph_def()


def _keep(kept: Sequence[Kept], graph: PricedGraph, edited: Graph, stem: str) -> None:
    """Have an edited graph keep what is on one device, by nodes called after a stem.

    What the values are computed of is dead where they are found.
    """
    view = graph.view
    near = view.nodes[kept[0].nodes[0]]
    sources = tuple(dict.fromkeys(port for each in kept for port in each.sources))
    values = tuple(port for each in kept for port in each.values)
    inner = frozenset(i for each in kept for i in each.nodes)
    source_types = {"Tsources": [view.dtype(port) for port in sources]}
    kept_types = {"Tkept": [view.dtype(port) for port in values]}

    def add(op: str, what: str, inputs: Iterable[str], **attrs: Any) -> str:
        node = new_node(op, f"{stem}/{what}", inputs, near.device, **attrs)
        mark(node, near.proto)
        return edited.add(node)

    texts = [view.text(port) for port in sources]
    found = add(RECALL, "recall", texts, **source_types)
    either = add("Switch", "either", (f"{found}:1", found), T=DT_INT64)
    none = add("Identity", "none", (either,), T=DT_INT64)
    # All wait: TensorFlow may cast in front of what now reads a variable.
    for i in sorted(inner):
        edited.wait(view.nodes[i].name, [f"^{none}"])
    computed = (view.text(port) for port in values)
    made = add(KEEP, "keep", (none, *texts, *computed), **source_types, **kept_types)
    token = add("Merge", "token", (made, f"{either}:1"), T=DT_INT64, N=2)
    unpacked = add(KEPT, "kept", (token,), **kept_types)
    for number, port in enumerate(values):
        text = f"{unpacked}:{number}" if number else unpacked
        shape = proto_from_shape(_shape(graph, port))
        types = {"T": view.dtype(port), "shape": shape}
        shaped = add("EnsureShape", f"value_{number}", (text,), **types)
        for reader in view.readers(port):
            if reader.node not in inner:
                edited.read(reader, shaped)
