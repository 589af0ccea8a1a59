"""Pass the inputs of a step on where its gradients overflow.

What becomes of them is the `Watch`'s affair, in `overflow.origin`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from grappler_pass.annotations import WATCH
from tf_amp._tensorflow_private.tracing import (
    frames_of,
    operations_behind,
    put_attribute,
)
from tf_amp._tensorflow_private.training import in_xla_context
from tf_amp.training.loss_scale.placing import place_here, runs_here
from tf_amp.training.overflow.messages import warn_of_overflow
from tf_amp.training.overflow.origin import Watch

# First parts of the names of what cannot be asked a second time.
_SOURCES = (
    "EagerPyFunc",
    "IteratorGetNext",
    "LookupTableFind",
    "OptionalGetValue",
    "Placeholder",
    "PyFunc",
    "QueueDequeue",
    "ReaderRead",
)


def watch(finite: Any, state: Mapping[str, Any], loss_scale: Any) -> list[Any]:
    """Pass the inputs of the step being traced on where it overflows.

    Args:
      finite: whether gradients are, bool scalar.
      state: of the loss scale as the step has used it.
      loss_scale: its specification.

    Returns:
      What must run with the step.
    """
    if tf.executing_eagerly() or in_xla_context():
        return []
    in_function = finite.graph.building_function
    asked = None if in_function else finite
    pass_inputs = passing_inputs(finite.graph, state, loss_scale, asked)

    def passed() -> Any:
        with tf.control_dependencies(pass_inputs(tf.constant(False))):
            return tf.constant(False)

    return [tf.cond(finite, lambda: tf.constant(True), passed)]


def passing_inputs(
    graph: Any, state: Mapping[str, Any], loss_scale: Any, asked: Any = None
) -> Callable[[Any], list[Any]]:
    """Return what adds the operation that passes a step's inputs on.

    It is called within a branch that a step takes that overflows, and few others do,
    with a bool scalar, true where gradients are finite.

    Args:
      graph: that the step is traced in.
      state: of the loss scale as the step has used it.
      loss_scale: its specification.
      asked: what the step asks of its gradients. A `tf.Graph` holds other steps too,
        whose inputs are then not fed; None: everything in the graph is the step's.
    """
    if not runs_here():
        # Another process cannot call what is registered here.
        return lambda finite: []
    place = f"{place_here() or ''}/device:CPU:0"
    watched = Watch(graph, loss_scale)
    inputs = [state["scale"], *_inputs_of(graph, asked)]

    def record(scale: Any, *values: Any) -> None:
        if not values[-1]:
            warn_of_overflow(float(scale))
        watched.record(scale, *values)

    def pass_inputs(finite: Any) -> list[Any]:
        with tf.device(place):
            done = tf.numpy_function(
                record, [*inputs, finite], [], name="overflow_inputs"
            )
        put_attribute(done, WATCH, s=watched.number.encode())
        return [done]

    return pass_inputs


def _inputs_of(graph: Any, asked: Any) -> list[Any]:
    """Return what comes into a step from outside: arguments, and data it fetches."""
    operations = graph.get_operations()
    if asked is not None:
        behind = set(operations_behind(asked.op))
        operations = [op for op in operations if op in behind]
    return [
        tensor
        for op in operations
        # What an old loop holds is out of reach.
        if op.type.startswith(_SOURCES) and not frames_of(op)
        for tensor in op.outputs
        if tensor.dtype.is_numpy_compatible and tensor.dtype.base_dtype == tensor.dtype
    ]
