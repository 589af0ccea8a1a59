"""Rows of a table that is trained, read from the variable alone.

Before   GatherV2(ReadVariableOp(table), ids)
After    ResourceGather(table, ids)

Once an optimizer has updated some rows of a table in place, as SGD does, TensorFlow
copies the whole of it wherever it is read (`copy_on_read_mode` in
tensorflow/core/framework/resource_var.h); Keras 3's Embedding reads it to look up a few
rows.

Not done: where no gradients are recorded, since in 16 bits tables that rest are read
from what is kept of them; under another policy than float32, for tables that are
quantized or a sum of several, under XLA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from grappler_pass.fusions import ROW_READS
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private import wrapping_unconverted
from tf_amp.training.fusions.tracing import is_wanted, mark


@wrapping_unconverted
def _read_rows(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
    """Do what a layer's `call` does, and read no more than it looks up."""
    table = _trained_table(layer)
    if table is None or not isinstance(inputs, tf.Tensor):
        return call(layer, inputs)
    return _rows(table, inputs) if is_wanted(ROW_READS) else call(layer, inputs)


def _trained_table(layer: Any) -> Any:
    """Return the variable that a layer looks up and learns; None if there is none."""
    weight = layer.embeddings
    table = getattr(weight, "value", None)
    if not isinstance(table, tf.Variable) or table.dtype != tf.float32:
        return None
    is_plain = layer.compute_dtype == layer.variable_dtype == "float32"
    is_trained = weight.trainable and private.is_recording()
    return _of_this_replica(table) if is_plain and is_trained else None


def _of_this_replica(table: Any) -> Any:
    """Return the variable itself, or the one of this replica; None between replicas."""
    if tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    components = strategy.experimental_local_results(table)
    return next((one for one in components if one.handle is table.handle), None)


def _rows(table: Any, inputs: tf.Tensor) -> tf.Tensor:
    """Return rows of a table, as Keras does: of numbers under 0, from its end."""
    is_number = inputs.dtype in (tf.int32, tf.int64)
    numbers = inputs if is_number else tf.cast(inputs, tf.int32)
    count = tf.cast(table.shape[0], numbers.dtype)
    rows = tf.gather(table, tf.where(numbers < 0, numbers + count, numbers))
    mark(rows, ROW_READS)
    return rows


HOOKS = {private.EMBEDDING: _read_rows}
