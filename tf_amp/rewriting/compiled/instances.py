"""Graphs that call functions which XLA compiles, and which of their instances.

A function in doubt has two (`functions`). The graph that calls one has an instance for
each, since its own calls are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grappler_pass.graph.view import Item


def called_in_turn(
    graph: bytes, rewritten: bytes | None, item: Callable[[], Item]
) -> bytes | None:
    """Return a serialized GraphDef that calls the instances whose turn it is.

    Args:
      graph: as TensorFlow has passed it.
      rewritten: in mixed precision; None: as it was.
      item: returns what TensorFlow relies on.
    """
    from tf_amp.measuring.steps import compared_calls, verdicts

    data = graph if rewritten is None else rewritten
    compared = [n for n in compared_calls.compiled_in_doubt() if n in data]
    if not compared:
        return rewritten
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.functions.calls import rename_functions

    graph_def = GraphDef.FromString(data)
    called = [name for name in compared if _calls(graph_def, name.decode())]
    has_instances = bool(called) and verdicts.state_keeper(graph_def) is None
    others = {
        name.decode(): other.decode()
        for name in called
        if (other := compared_calls.called_instance(name, has_instances)) != name
    }
    if not others:
        return rewritten
    for node in graph_def.node:
        rename_functions(node, others)
    return bytes(graph_def.SerializeToString())


def _calls(graph_def: Any, name: str) -> bool:
    """Return whether a graph itself calls a function, not one that it calls."""
    from grappler_pass.graph.walks import function_attrs

    return any(
        node.op == name or any(f.name == name for f in function_attrs(node))
        for node in graph_def.node
    )
