"""What placement overrides of Keras' optimizers that is not public.

Where it is gone, an offloaded optimizer does not know the variables that it was told to
exclude from weight decay; one warning says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_amp._tensorflow_private import warn_once

_KEY = "_var_key"


def key_override(
    base: type, original_of: Callable[[Any, Any], Any]
) -> dict[str, Callable[[Any, Any], Any]]:
    """Return the method, by name, that knows copies of variables by their originals.

    Args:
      base: class of the optimizer.
      original_of: returns what an optimizer's variable is a copy of, or itself.
    """
    inherited = getattr(base, _KEY, None)
    if inherited is None:
        warn_once(
            f"{base.__name__}.{_KEY}",
            "variables that an offloaded optimizer was told to exclude from weight "
            "decay are decayed",
        )
        return {}

    def key(optimizer: Any, variable: Any) -> Any:
        return inherited(optimizer, original_of(optimizer, variable))

    return {_KEY: key}
