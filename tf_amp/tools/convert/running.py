"""Stored models as callables that run as they are stored."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.view import Item
from tf_amp.runtime import scope, switch
from tf_amp.tools.graph_runs.batches import loaded_signatures, specs_of


def signatures_of(folder: pathlib.Path) -> dict[str, Any]:
    """Load a SavedModel for running it as it is; return its signatures."""
    with unmixed():
        return loaded_signatures(folder)


def function_of(graph_def: GraphDef, item: Item) -> Any:
    """Return a ConcreteFunction that runs a bare graph, given its inputs in order."""
    specs = specs_of(graph_def)

    def run(*inputs: Any) -> list[Any]:
        fed = {s.name: value for s, value in zip(specs, inputs, strict=True)}
        found: list[Any] = tf.graph_util.import_graph_def(
            graph_def, fed, [f"{name}:0" for name in item.fetch], name=""
        )
        return found

    signature = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
    with unmixed():
        return tf.function(run, input_signature=signature).get_concrete_function()


def taking_any_type(signature: Any) -> Callable[..., Any]:
    """Return a signature that may be called with float32 where it takes 16 bits."""
    specs = signature.structured_input_signature[1]

    def call(**inputs: Any) -> Any:
        return signature(
            **{
                name: tf.cast(value, specs[name].dtype)
                if specs[name].dtype.is_floating
                else tf.convert_to_tensor(value)
                for name, value in inputs.items()
            }
        )

    return call


def with_rounded_weights(
    function: Any, rounded: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return a function whose variables hold rounded values from its first call on."""
    waiting = list(function.variables)

    def run(*args: Any, **kwargs: Any) -> Any:
        while waiting:
            variable = waiting.pop()
            variable.assign(rounded(variable.numpy()))
        return function(*args, **kwargs)

    return run


def unmixed() -> AbstractContextManager[Any]:
    """Return a context in which what is traced or loaded is not rewritten later."""
    return scope.float32_scope() if switch.is_enabled() else contextlib.nullcontext()
