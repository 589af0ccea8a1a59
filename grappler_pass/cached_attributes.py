"""Attributes that are computed when they are first asked for, without a lock.

In Python 3.10 and 3.11 `functools.cached_property` holds a lock while it computes, one
for all objects of a class. A child that is forked meanwhile, as loaders of data are,
has nobody to release it, and waits forever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    cached_attribute = functools.cached_property
else:

    class cached_attribute:
        """What a method returns, kept in the object.

        Of threads that ask at once each may compute it; all get what is kept first.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            """Take the method, as a decorator does."""
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Note under which name the object keeps it."""
            self._name = name

        def __get__(self, owner: Any, kind: type | None = None) -> Any:
            """Compute it; Python asks no more once the object keeps it."""
            if owner is None:
                return self
            return vars(owner).setdefault(self._name, self._compute(owner))
