"""What placement needs of Keras' optimizers that is not public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_amp._tensorflow_private import warn_once

_KEY = "_var_key"
_REDUCE = {
    "keras": "_all_reduce_sum_gradients",
    "tf_keras": "aggregate_gradients",
}
_LOST_KEY = (
    "variables that an offloaded optimizer was set to exclude from weight decay are "
    "decayed"
)
_LOST_REDUCE = "an offloaded optimizer begins its update when all gradients are there"

Methods = dict[str, Callable[[Any, Any], Any]]


def has_slots(optimizer: Any) -> bool:
    """Return whether an optimizer of Keras 3 or tf_keras was built."""
    return bool(
        getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)
    )


def offloading_methods(base: type, original_of: Callable[[Any, Any], Any]) -> Methods:
    """Return methods, by name, of a class of optimizers that updates copies.

    `original_of` returns what an optimizer's variable is a copy of, or itself.
    """
    return _key_method(base, original_of) | _reducing_method(base)


def _key_method(base: type, original_of: Callable[[Any, Any], Any]) -> Methods:
    inherited = getattr(base, _KEY, None)
    if inherited is None:
        warn_once(f"{base.__name__}.{_KEY}", _LOST_KEY)
        return {}

    def key(optimizer: Any, variable: Any) -> Any:
        return inherited(optimizer, original_of(optimizer, variable))

    return {_KEY: key}


def _reducing_method(base: type) -> Methods:
    """Keep gradients separate.

    Without a strategy there is nothing to add up, but Keras passes all gradients
    through one op, behind which no update begins before the last is there.
    """
    for package, name in _REDUCE.items():
        inherited = getattr(base, name, None)
        if inherited is None:
            continue
        # A user's own way to add gradients up stays.
        is_theirs = inherited.__module__.partition(".")[0] == package
        return {name: lambda optimizer, pairs: pairs} if is_theirs else {}
    warn_once(f"{base.__name__}.{_REDUCE['keras']}", _LOST_REDUCE)
    return {}
