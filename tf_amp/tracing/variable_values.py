"""Values of variables as the nodes of a rewritten graph refer to them.

Nodes are found again in the graphs as traced, whose operations know what they captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grappler_pass.annotations import STAMP
from grappler_pass.graph.op_table import REF_VARIABLE_OPS
from tf_amp.tracing import graph_registry
from tf_amp.tracing.stamps import Stamp

Variable = Callable[[Any], Any]


def of_function(graph: Any) -> Variable:
    """Read the variables that a function uses; return them by node, as NumPy arrays.

    Args:
      graph: of the function; what functions within it use is among its own.
    """
    from tf_amp._tensorflow_private import tracing

    handles = {}
    for tensor, _ in graph.captures:
        handle = outermost(tensor)
        contents = tracing.handle_contents(handle) if handle is not None else ()
        if len(contents) == 1:
            handles[id(handle)] = (handle, tracing.variable_value(handle, contents[0]))

    def value_of(node: Any) -> Any:
        if STAMP not in node.attr:
            return None
        number = Stamp.from_bytes(node.attr[STAMP].s).number
        home = graph_registry.graph_of(number)
        op = home and graph_registry.inlined_op(home, node.name)
        if op is None or not op.inputs:
            return None
        value = handles.get(id(outermost(op.inputs[0])))
        return None if value is None else value[1].numpy()

    return value_of


def of_session(session: Any) -> Variable:
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


def outermost(tensor: Any) -> Any | None:
    """Return the eager tensor behind one of a function; None of an argument."""
    while not hasattr(tensor, "numpy"):
        captures = getattr(tensor.graph, "captures", ())
        outer = next((ext for ext, own in captures if own is tensor), None)
        if outer is None:
            return None
        tensor = outer
    return tensor
