"""Which named arguments of `explain` and its like go to the function that they are for.

What is no setting of the task's own does. A name that the function does not have is
refused; one that takes any name is handed all but the settings of `tf_amp.enable`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from tf_amp.errors import ConfigError
from tf_amp.runtime import switch


def check_named(task: Callable[..., Any], fn: Any, named: Iterable[str]) -> None:
    """Refuse names of arguments that are meant for nobody.

    The task takes settings by name and hands the rest on to `fn`: a GraphDef, a
    ConcreteFunction, or a callable.

    Raises:
      ConfigError: the function has no argument of one of these names.
    """
    known, takes_any = _names_of(fn)
    settings = inspect.signature(switch.enable).parameters
    for name in named:
        if name in known or (takes_any and name not in settings):
            continue
        own = inspect.signature(task).parameters.values()
        allowed = sorted(p.name for p in own if p.kind is p.KEYWORD_ONLY)
        remedy = ""
        if name in settings:
            remedy = (
                f" tf_amp.enable({name}=...) holds for what is traced afterwards. An "
                "argument that the function takes by ** is given to it in a lambda."
            )
        raise ConfigError(
            f"{task.__name__}: received {name}=; allowed are the settings "
            f"{', '.join(allowed)}, and the function's arguments"
            f"{': ' if known else ''}{', '.join(sorted(known))}.{remedy}"
        )


def _names_of(fn: Any) -> tuple[set[str], bool]:
    """Return the names that something gives its arguments, and if it takes others."""
    if isinstance(fn, GraphDef):
        return {node.name for node in fn.node if node.op == "Placeholder"}, False
    if hasattr(fn, "structured_input_signature"):
        specs = tf.nest.flatten(fn.structured_input_signature)
        of_specs = {spec.name for spec in specs if isinstance(spec, tf.TensorSpec)}
        return {*fn.function_type.parameters, *of_specs} - {None}, False
    called = getattr(fn, "python_function", fn)
    try:
        parameters = list(inspect.signature(called).parameters.values())
        # Of a Keras model, what is called takes any, and `call` says what it is.
        if any(p.kind is p.VAR_KEYWORD for p in parameters) and hasattr(called, "call"):
            parameters += inspect.signature(called.call).parameters.values()
    except (TypeError, ValueError):
        return set(), True
    names = {
        p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)
