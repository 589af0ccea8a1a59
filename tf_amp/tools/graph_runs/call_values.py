"""The values of a call, or of a batch, by the names that a sandbox gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from tf_amp.errors import UnfitDataError
from tf_amp.tools.graph_runs.batches import Batch, specs_of
from tf_amp.tools.graph_runs.differences import Array


def arguments_by_placeholder(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Array]:
    """Return the values of a call by the names that a sandbox gives them.

    Raises:
      UnfitDataError: they are more or fewer than the function takes.
    """
    places = _places_of(function)
    given = _tensors_of_call(function, args, kwargs)
    if not given:
        return {}
    if len(given) != len(places):
        expected = "; ".join(map(str, specs_of(function)))
        raise UnfitDataError(
            f"{function.graph.name} takes {len(places)} tensors and received "
            f"{len(given)}. Expected are: {expected}."
        )
    found: dict[str, Array] = {}
    for place, value in zip(places, given, strict=True):
        if isinstance(value, tf.TensorSpec) or not hasattr(value, "__array__"):
            continue
        handle = place.dtype == tf.resource
        key = place.op.name if handle else f"{place.op.name}:0"
        found[key] = np.asarray(value)
    return found


def batch_by_placeholder(function: Any, batch: Batch) -> dict[str, Array]:
    """Return the values of a checked batch by the names that a sandbox gives them.

    The function is one that was traced, or a GraphDef.
    """
    if isinstance(function, GraphDef):
        return {f"{name}:0": value for name, value in batch.items()}
    places = _places_of(function)
    names = [spec.name for spec in specs_of(function)]
    return {
        f"{place.op.name}:0": batch[name]
        for place, name in zip(places, names, strict=True)
    }


def _tensors_of_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """Return the tensors of a call in the order of the function's arguments."""
    ordered: Any = (args, kwargs)
    try:
        bound = function.function_type.bind(*args, **kwargs)
        ordered = list(bound.arguments.values())
    except TypeError:
        # It may be called by the names of its TensorSpecs, too.
        names = [spec.name for spec in specs_of(function)]
        if not args and kwargs.keys() <= set(names):
            ordered = [kwargs[name] for name in names if name in kwargs]
    leaves = tf.nest.flatten(ordered, expand_composites=True)
    return [leaf for leaf in leaves if hasattr(leaf, "dtype")]


def _places_of(function: Any) -> list[Any]:
    """Return the placeholders of a function's arguments."""
    captured = {id(placeholder) for _, placeholder in function.graph.captures}
    return [t for t in function.inputs if id(t) not in captured]
