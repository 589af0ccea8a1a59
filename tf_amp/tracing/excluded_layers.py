"""Keras layers that stay float32, given as the objects they are.

Names would not do: TensorFlow calls the second use of a layer `dense` as Keras calls
the second layer, `dense_1`, and layers in different models may share a name. So what a
layer makes while it is called is marked, as in `float32_scope`. In a configuration a
layer is a pattern that is no operation's name.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from tf_amp._tensorflow_private import install_when_imported, tracing, wrapping
from tf_amp.config.exclusion import checked_patterns
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing.in_force import current_config

_KERAS = ("keras.", "tf_keras.")
# No operation's name holds a colon.
_PREFIX = "layer:"

_patterns: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


def checked_exclusions(value: object, name: str = "exclude") -> tuple[str, ...]:
    """Return regular expressions and layers as patterns.

    Args:
      value: one of them or several, as for `checked_patterns`; a layer is one of Keras
        3 or tf_keras, built or not.
      name: of the setting, for the error.

    Raises:
      ConfigError: something else is among them.
    """
    given = [value] if _is_layer(value) else value
    if isinstance(given, str) or not isinstance(given, Iterable):
        return checked_patterns(given, name)
    patterns = [_pattern_of(each) if _is_layer(each) else each for each in given]
    return checked_patterns(patterns, name)


def is_of_layer(pattern: str) -> bool:
    """Return whether a pattern stands for a layer, and no operation has its name."""
    return pattern.startswith(_PREFIX)


def install(exclude: Iterable[str]) -> None:
    """Keep layers among what is excluded in float32 when they are called."""
    if any(map(is_of_layer, exclude)):
        for hook in tracing.CALL_LAYER:
            install_when_imported(hook, _call)


@wrapping
def _call(call: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer, and mark what it makes if it is excluded."""
    pattern = _patterns.get(layer)
    config = current_config() if pattern else None
    if config is None or pattern not in config.exclude:
        return call(layer, *args, **kwargs)
    with scope_stack.keeping_float32(f"layer {layer.name}"):
        return call(layer, *args, **kwargs)


def _pattern_of(layer: Any) -> str:
    if layer not in _patterns:
        name = re.sub(r"\s", "_", str(layer.name))
        _patterns[layer] = f"{_PREFIX}{re.escape(name)}:{next(_numbers)}"
    return _patterns[layer]


def _is_layer(value: object) -> bool:
    return any(
        kind.__name__ == "Layer" and kind.__module__.startswith(_KERAS)
        for kind in type(value).__mro__
    )
