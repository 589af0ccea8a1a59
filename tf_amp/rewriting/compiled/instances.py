"""Graphs that call functions which XLA compiles, and which of their instances.

A function in doubt has two (`functions`). The graph that calls one has an instance for
each, since its own calls are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from tf_amp.rewriting.arriving_graphs import Arrival


def called_in_turn(arrival: Arrival) -> GraphDef | None:
    """Return a graph that calls the instances whose turn it is.

    None where it calls those already.
    """
    from tf_amp.compare import call_sites

    in_doubt = [n for n in call_sites.compiled_in_doubt() if n in arrival.data]
    if not in_doubt:
        return None
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.functions.calls import rename_functions
    from grappler_pass.functions.conversion import called_by, library_of
    from tf_amp.compare import verdicts

    graph_def = arrival.running
    library = library_of(graph_def)
    # By the graph itself, not by a function that it calls.
    called = {name for node in graph_def.node for name in called_by(node, library)}
    compared = [name for name in in_doubt if name.decode() in called]
    has_instances = bool(compared) and verdicts.state_keeper(graph_def) is None
    others = {
        name.decode(): other.decode()
        for name in compared
        if (other := call_sites.called_instance(name, has_instances)) != name
    }
    if not others:
        return None
    changed = GraphDef()
    changed.CopyFrom(graph_def)
    for node in changed.node:
        rename_functions(node, others)
    return changed
