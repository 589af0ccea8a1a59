"""Models that were compiled in a scope train in it, wherever `fit` is called.

A scope around `fit` itself goes before the one around `compile`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from tf_amp import _tensorflow_private_tracing as tracing
from tf_amp import scope_stack
from tf_amp._tensorflow_private_training import install_if_loaded

_layers: weakref.WeakKeyDictionary[Any, tuple[scope_stack.Layer, ...]]
_layers = weakref.WeakKeyDictionary()


def install() -> None:
    """Take the hooks of those Keras that are loaded."""
    for hook in tracing.COMPILE_MODEL:
        install_if_loaded(hook, _remembering)
    for hook in tracing.RUN_MODEL:
        install_if_loaded(hook, _running)


def _remembering(compile_model: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_model)
    def compile_and_remember(model: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_model(model, *args, **kwargs)
        around = tuple(layer for layer in scope_stack.layers() if layer.graph is None)
        if around:
            _layers[model] = around
        else:
            _layers.pop(model, None)
        return result

    return compile_and_remember


def _running(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def run_in_scope(model: Any, *args: Any, **kwargs: Any) -> Any:
        around = _layers.get(model)
        if around is None or scope_stack.layers():
            return run(model, *args, **kwargs)
        with scope_stack.within(around):
            return run(model, *args, **kwargs)

    return run_in_scope
