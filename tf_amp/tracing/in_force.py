"""Which settings are in force where operations and gradients are made."""

from __future__ import annotations

from typing import Any

from tf_amp._tensorflow_private import tracing
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing import stamps


def in_force(graph: Any) -> stamps.Force:
    """Return which settings hold for new operations of a graph; None: no graph."""
    layer = scope_stack.settings_layer(graph)
    if layer is not None:
        return stamps.Force(layer.settings, layer.graph)
    scope = scope_registry.scope_in_force()
    return stamps.Force(scope.id if scope else None)


def settings_here() -> str | None:
    """Return the id of the settings for new operations of the graph being traced."""
    return in_force(tracing.traced_graph()).settings


def current_config() -> AmpConfig | None:
    """Return the configuration in force here; None where mixed precision is off.

    While a function is traced that is the function's own, unless a scope was entered
    since.
    """
    graph = tracing.traced_graph()
    if graph is None:
        settings_id = in_force(None).settings
    else:
        settings_id = stamps.stamp_of_graph(graph, in_force(graph)).settings
    scope = scope_registry.scope_of(settings_id or "")
    return scope.config if scope else None


def stamp_graph(graph: Any) -> None:
    """Put the settings in force on a graph built before there were any."""
    scope = scope_registry.scope_in_force()
    if scope is not None:
        stamps.stamp_unstamped(graph, scope.id)
