"""What the tracing of a program tells of nodes that Grappler passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grappler_pass.annotations import STAMP
from grappler_pass.graph.op_table import FORWARDING_OPS
from grappler_pass.graph.view import GraphView, Node
from tf_amp.tracing import graph_registry
from tf_amp.tracing.stamps import Stamp
from tf_amp.tracing.variable_values import outermost

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.shapes import Shapes


def with_traced_shapes(graph_def: GraphDef, shapes: Shapes) -> Shapes:
    """Return shapes with those of calls, which are known from tracing alone."""
    completed = dict(shapes)
    for node in graph_def.node:
        known = shapes.get(node.name, (None,))
        op = _traced(node) if None in known else None
        if op is not None:
            ranks = (tensor.shape for tensor in op.outputs)
            completed[node.name] = tuple(
                None if shape.rank is None else tuple(shape.as_list())
                for shape in ranks
            )
    return completed


def variable_names(view: GraphView) -> Mapping[str, str]:
    """Return what the program calls its variables, by name of the handle's node."""
    found: dict[str, str] = {}
    for node in view.nodes:
        if node.op != "_Arg":
            continue
        names = (_variable_of(reader.proto) for reader in _readers(view, node))
        name = next(filter(None, names), "")
        if name:
            found[node.name] = name
    return found


def _readers(view: GraphView, node: Node) -> Iterator[Node]:
    """Yield what reads a handle, in branches too."""
    waiting, seen = [node], {node.index}
    for source in waiting:
        for port in view.output_ports(source.index):
            for reader in view.readers(port):
                found = view.nodes[reader.node]
                if found.op in FORWARDING_OPS and found.index not in seen:
                    seen.add(found.index)
                    waiting.append(found)
                elif found.op not in FORWARDING_OPS:
                    yield found


def _variable_of(reader: Any) -> str:
    """Return the name of the variable whose handle a traced operation takes first."""
    op = _traced(reader)
    handle = outermost(op.inputs[0]) if op is not None and op.inputs else None
    graph = op.graph if handle is not None and op is not None else None
    while graph is not None:
        variables = getattr(graph, "variables", ())
        found = next((v for v in variables if v.handle is handle), None)
        if found is not None:
            return str(found.name).partition(":")[0]
        graph = getattr(graph, "outer_graph", None)
    return ""


def _traced(node: Any) -> Any | None:
    """Return the operation that a node was traced as; None where it is not known."""
    if STAMP not in node.attr:
        return None
    graph = graph_registry.graph_of(Stamp.from_bytes(node.attr[STAMP].s).number)
    return None if graph is None else graph_registry.inlined_op(graph, node.name)
