"""TensorFlow's private names around the graphs that it executes, once all is rewritten.

TensorFlow reports a graph only while it makes an instance of a function, so that the
first call of it has to be watched. What XLA compiles it does not report; there the
function's definition is what is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grappler_pass.graph.walks import function_attrs
from tf_amp._tensorflow_private import eager_context


def executed_graphs(first_call: Callable[[], object]) -> Sequence[Any]:
    """Return the GraphDefs that the first call of a `tf.function` executes."""
    context = eager_context()
    context.enable_run_metadata()
    try:
        _forget_earlier_graphs(context)
        first_call()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs: Sequence[Any] = metadata.partition_graphs
    return graphs


def _forget_earlier_graphs(context: Any) -> None:
    """Have TensorFlow pass on now, with an operation, what it has gathered so far."""
    import tensorflow as tf

    tf.identity(0.0)
    context.export_run_metadata()


def definitions(context: Any, name: bytes) -> Sequence[Any]:
    """Return the FunctionDefs of the named function, and of those that it calls."""
    found: dict[bytes, Any] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each not in found and context.has_function(each):
            found[each] = context.get_function_def(each)
            waiting.extend(_called_by(found[each]))
    return [*found.values()]


def _called_by(definition: Any) -> Iterator[bytes]:
    for node in definition.node_def:
        for function in function_attrs(node):
            yield function.name.encode()
