"""Look at the graph that TensorFlow executes, after all of its rewriting."""

from collections.abc import Callable

from tf_amp._tensorflow_private.functions import executed_graphs
from tf_amp.tools.bench.journal import OpCounts, count_ops_of_graphs


def count_executed_ops(first_call: Callable[[], object]) -> OpCounts:
    """Return the counts for a function, which has to be called here first of all.

    Args:  first_call: calls a ``tf.function`` that was not called before; TensorFlow
        reports the graph only while it instantiates the function.
    """
    return count_ops_of_graphs(executed_graphs(first_call))


def count_step_nodes(first_call: Callable[[], object]) -> int:
    """Return the nodes of the largest graph executed, leaving eager operations out."""
    return max(len(graph.node) for graph in executed_graphs(first_call))


def count_executed(first_call: Callable[[], object], op: str) -> int:
    """Return how many nodes of one op the executed graphs hold."""
    graphs = executed_graphs(first_call)
    return sum(node.op == op for graph in graphs for node in graph.node)
