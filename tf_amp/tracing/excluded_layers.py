"""Keras layers that stay float32: what one makes while it is called is marked.

As in `float32_scope`. In a configuration such a layer is a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tf_amp._tensorflow_private import install_when_imported, tracing, wrapping
from tf_amp.config.setting_values import is_of_layer, layer_patterns
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing.stamps import current_config


def install(exclude: Iterable[str]) -> None:
    """Keep layers among what is excluded in float32 when they are called."""
    if any(map(is_of_layer, exclude)):
        for hook in tracing.CALL_LAYER:
            install_when_imported(hook, _call)


@wrapping
def _call(call: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer, and mark what it makes if it is excluded."""
    pattern = layer_patterns.get(layer)
    config = current_config() if pattern else None
    if config is None or pattern not in config.exclude:
        return call(layer, *args, **kwargs)
    with scope_stack.keeping_float32(f"layer {layer.name}"):
        return call(layer, *args, **kwargs)
