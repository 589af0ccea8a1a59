"""TensorFlow's private names around the graphs that it executes, once all is rewritten.

TensorFlow reports a graph only while it makes an instance of a function, so that the
first call of it has to be watched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

_CONTEXT = "tensorflow.python.eager.context"


def executed_graphs(first_call: Callable[[], object]) -> Sequence[Any]:
    """Return the GraphDefs that a call executes which is the first of its function.

    Args:
      first_call: calls a `tf.function` that was not called before.
    """
    context = importlib.import_module(_CONTEXT).context()
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
    """Have TensorFlow pass what it has gathered since it was asked to once.

    It does so with the next operation.
    """
    import tensorflow as tf

    tf.identity(0.0)
    context.export_run_metadata()
