"""What the tracing of a program shows of nodes that Grappler passes.

Nodes are found again in the graphs as traced, whose operations know shapes, and which
variables they captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grappler_pass.graph.op_table import FORWARDING_OPS, REF_VARIABLE_OPS
from grappler_pass.graph.walks import reached
from tf_amp._tensorflow_private import tracing
from tf_amp.tracing import graph_registry
from tf_amp.tracing.stamps import traced_op

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import GraphView, Node

# The value of the variable that a node is or reads, as a NumPy array; None: not known.
Values = Callable[[Any], Any]


def with_traced_shapes(graph_def: GraphDef, shapes: Shapes) -> Shapes:
    """Return shapes with those of calls, which are known from tracing alone."""
    completed = dict(shapes)
    for node in graph_def.node:
        known = shapes.get(node.name, (None,))
        op = traced_op(node) if None in known else None
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


def values_of_function(graph: Any) -> Values:
    """Read the variables that a function uses; return them by node, as NumPy arrays.

    Args:
      graph: of the function; what functions within it use is among its own.
    """
    handles = {}
    for tensor, _ in graph.captures:
        handle = tracing.captured_from(tensor)
        contents = tracing.handle_contents(handle) if hasattr(handle, "numpy") else ()
        if len(contents) == 1:
            handles[id(handle)] = (handle, tracing.variable_value(handle, contents[0]))

    def value_of(node: Any) -> Any:
        op = traced_op(node)
        if op is None or not op.inputs:
            return None
        value = handles.get(id(tracing.captured_from(op.inputs[0])))
        return None if value is None else value[1].numpy()

    return value_of


def values_of_session(session: Any) -> Values:
    """Return variables of a Session's graph by node, as NumPy arrays."""

    def value_of(node: Any) -> Any:
        op = graph_registry.op_named(session.graph, node.name)
        if op is None:
            return None
        if op.type in REF_VARIABLE_OPS:
            return session.run(op.outputs[0])
        readers = op.outputs[0].consumers() if op.type == "VarHandleOp" else []
        reads = (r for r in readers if r.type == "ReadVariableOp")
        read = next(reads, None)
        return None if read is None else session.run(read.outputs[0])

    return value_of


def _readers(view: GraphView, node: Node) -> Iterator[Node]:
    """Yield what reads a handle, in branches too."""

    def readers(index: int) -> list[int]:
        is_end = index != node.index and view.nodes[index].op not in FORWARDING_OPS
        ports = () if is_end else view.output_ports(index)
        return [reader.node for port in ports for reader in view.readers(port)]

    _, *others = (view.nodes[index] for index in reached([node.index], readers))
    return (each for each in others if each.op not in FORWARDING_OPS)


def _variable_of(reader: Any) -> str:
    """Return the name of the variable whose handle a traced operation takes first."""
    op = traced_op(reader)
    handle = tracing.captured_from(op.inputs[0]) if op and op.inputs else None
    if op is None or not hasattr(handle, "numpy"):
        return ""
    graphs = tracing.outwards(op.graph)
    variables = (v for graph in graphs for v in getattr(graph, "variables", ()))
    found = next((v for v in variables if v.handle is handle), None)
    return "" if found is None else str(found.name).partition(":")[0]
