"""Have XLA compile what it can of a graph that a Session runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grappler_pass.graph.op_traits import is_random

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

_COMPILE = "_XlaCompile"


def with_clusters(graph_def: GraphDef) -> GraphDef:
    """Return a copy of a graph of which XLA compiles all that it knows.

    Not done: under XLA random ops draw other numbers in every run, whatever their
    seeds, so they stay outside.
    """
    compiled = type(graph_def)()
    compiled.CopyFrom(graph_def)
    for node in compiled.node:
        if not is_random(node.op):
            node.attr[_COMPILE].b = True
    return compiled
