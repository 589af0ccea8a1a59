"""Look at the graph that TensorFlow executes, after all of its rewriting."""

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf
from tensorflow.core.framework import (
    attr_value_pb2,
    graph_pb2,
    node_def_pb2,
    types_pb2,
)
from tensorflow.python.eager import context

from benchmarks.records import OpCounts

_LOW = frozenset({types_pb2.DT_HALF, types_pb2.DT_BFLOAT16})


def count_executed_ops(first_call: Callable[[], object]) -> OpCounts:
    """Return the counts for a function, which has to be called here first of all.

    Args:  first_call: calls a ``tf.function`` that was not called before; TensorFlow
        reports the graph only while it instantiates the function.
    """
    graphs = _executed_graphs(first_call)
    nodes = [node for graph in graphs for node in graph.node]
    for graph in graphs:
        for function in graph.library.function:
            nodes.extend(function.node_def)
    return count_ops(nodes)


def count_step_nodes(first_call: Callable[[], object]) -> int:
    """Return the nodes of the largest graph executed, leaving eager operations out."""
    return max(len(graph.node) for graph in _executed_graphs(first_call))


def count_executed(first_call: Callable[[], object], op: str) -> int:
    """Return how many nodes of one op the executed graphs hold."""
    graphs = _executed_graphs(first_call)
    return sum(node.op == op for graph in graphs for node in graph.node)


def _executed_graphs(first_call: Callable[[], object]) -> Sequence[graph_pb2.GraphDef]:
    ctx = context.context()
    ctx.enable_run_metadata()
    try:
        # TensorFlow gathers graphs when it was asked to once, and passes them with
        # the next operation: those from before are none of ours.
        tf.identity(0.0)
        ctx.export_run_metadata()
        first_call()
        metadata = ctx.export_run_metadata()
    finally:
        ctx.disable_run_metadata()
    return metadata.partition_graphs


def count_ops(nodes: Iterable[node_def_pb2.NodeDef]) -> OpCounts:
    """Return how many operations compute in 16 bits, or cast to or from them."""
    ops = [(node.op, _is_low(node.attr.values())) for node in nodes]
    return OpCounts(
        total=len(ops),
        low=sum(low for op, low in ops if op != "Cast"),
        casts=sum(low for op, low in ops if op == "Cast"),
        onednn=sum(op.startswith("_Mkl") for op, _ in ops),
    )


def _is_low(attributes: Iterable[attr_value_pb2.AttrValue]) -> bool:
    return any(
        each.type in _LOW or not _LOW.isdisjoint(each.list.type) for each in attributes
    )
