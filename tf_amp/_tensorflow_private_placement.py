"""What placement overrides of Keras' optimizers that is not public.

Where one is gone, one warning says what is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_amp._tensorflow_private import warn_once

_KEY = "_var_key"
_REDUCE = "_all_reduce_sum_gradients"
_LOST = {
    _KEY: "variables that an offloaded optimizer was told to exclude from weight decay "
    "are decayed",
    _REDUCE: "an offloaded optimizer begins its update when all gradients are there",
}

Methods = dict[str, Callable[[Any, Any], Any]]


def offloading_methods(base: type, original_of: Callable[[Any, Any], Any]) -> Methods:
    """Return methods, by name, of a class of optimizers that updates copies.

    Args:
      base: class of the optimizer.
      original_of: returns what an optimizer's variable is a copy of, or itself.
    """
    inherited = getattr(base, _KEY, None)

    def key(optimizer: Any, variable: Any) -> Any:
        assert inherited is not None, "only what exists is overridden"
        return inherited(optimizer, original_of(optimizer, variable))

    def unreduced(optimizer: Any, grads_and_vars: Any) -> Any:
        # Without a strategy there is nothing to add up, but Keras passes all gradients
        # through one op, behind which no update begins before the last is there.
        return grads_and_vars

    methods: Methods = {_KEY: key, _REDUCE: unreduced}
    for name in [name for name in methods if not hasattr(base, name)]:
        warn_once(f"{base.__name__}.{name}", _LOST[name])
        del methods[name]
    return methods
