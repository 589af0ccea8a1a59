"""Arguments by position or name, as earlier versions took them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tf_amp.config.loss_scales.words import is_loss_scale

_Function = TypeVar("_Function", bound=Callable[..., Any])


def keywords_after_dtype(
    *earlier: str, of_method: bool = False
) -> Callable[[_Function], _Function]:
    """Return a decorator of functions, or methods, that take a dtype, and keywords.

    More arguments by position, or a loss scale in the place of the dtype, are taken in
    the order in which they once were, with a DeprecationWarning.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            own, given = args[:of_method], args[of_method:]
            if len(given) < 2 and not any(map(is_loss_scale, given)):
                return function(*args, **kwargs)
            if len(given) > len(earlier):
                raise TypeError(f"at most {len(earlier)} arguments go by position")
            named = dict(zip(earlier, given, strict=False))
            if twice := named.keys() & kwargs.keys():
                raise TypeError(f"given twice: {', '.join(sorted(twice))}")
            warnings.warn(
                "arguments after dtype go by keyword: "
                + ", ".join(f"{name}={value!r}" for name, value in named.items()),
                DeprecationWarning,
                stacklevel=2,
            )
            return function(*own, **named, **kwargs)

        return cast(_Function, call)

    return decorate


def device_is_a_profile(function: _Function) -> _Function:
    """Let `device=` stand for `device_profile=`, with a DeprecationWarning."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and "device_profile" not in kwargs:
            warnings.warn(
                f"{function.__name__}: device= is device_profile= now",
                DeprecationWarning,
                stacklevel=2,
            )
            kwargs["device_profile"] = kwargs.pop("device")
        return function(*args, **kwargs)

    return cast(_Function, call)
