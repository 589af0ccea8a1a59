"""Loss scales in words, as the environment and the command line name them.

    none | dynamic | statistical | 1024
    dynamic:initial=1024,growth_interval=500,at_minimum=raise

Equal words stand for one and the same loss scale.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Literal

from tf_amp.config.loss_scales.adaptive import DynamicLossScale, StatisticalLossScale
from tf_amp.config.loss_scales.arguments import is_number
from tf_amp.config.loss_scales.protocol import LossScale, NoOpLossScale, StaticLossScale
from tf_amp.errors import ConfigError

_CLASSES: dict[str, type[LossScale]] = {
    "none": NoOpLossScale,
    "dynamic": DynamicLossScale,
    "statistical": StatisticalLossScale,
}
# A number, or words with arguments, do as well.
LossScaleWord = Literal["none", "dynamic", "statistical"]
_WORDS = [f'"{word}"' for word in _CLASSES]
# What may be said for a loss scale.
ALLOWED_WORDS = f"a number, {', '.join(_WORDS[:-1])} or {_WORDS[-1]}"


def loss_scale_from_words(value: object, name: str = "loss_scale") -> LossScale:
    """Return a loss scale given as such, as a number or in words.

    Args:
      value: an object with the functions of `LossScale` is returned as it is.
      name: of the setting, for the message.

    Raises:
      ConfigError: the words are unknown, or a number is out of range.
    """
    if is_number(value):
        return _shared("static", (("value", value),))
    if isinstance(value, str):
        return _from_text(value.strip(), name)
    functions = ("initial_state", "scale", "unscale", "adjust")
    if not isinstance(value, type) and all(hasattr(value, f) for f in functions):
        return value  # type: ignore[return-value]
    raise ConfigError(
        f"{name}: received {value!r}; allowed are {ALLOWED_WORDS}, or an object with "
        f"{', '.join(functions)}."
    )


def words_from_loss_scale(loss_scale: LossScale) -> str:
    """Return words that stand for an equal loss scale.

    Raises:
      ConfigError: it is of a class of the user's own, which has no words.
    """
    if type(loss_scale) is StaticLossScale:
        return repr(loss_scale.value)
    for word, kind in _CLASSES.items():
        if type(loss_scale) is kind:
            values = vars(loss_scale).items()
            changed = ",".join(f"{k}={v}" for k, v in _without_defaults(kind, values))
            return f"{word}:{changed}" if changed else word
    raise ConfigError(
        f"loss_scale: {loss_scale!r} cannot be written into a variable; allowed there "
        f"are {ALLOWED_WORDS}."
    )


def _from_text(text: str, name: str) -> LossScale:
    word, _, rest = text.lower().partition(":")
    if word in _CLASSES:
        arguments = _arguments(_CLASSES[word], rest, text, name)
    else:
        word = "static"
        try:
            arguments = (("value", float(text)),)
        except ValueError as error:
            raise ConfigError(
                f"{name}: received {text!r}; allowed are {ALLOWED_WORDS}."
            ) from error
    try:
        return _shared(word, arguments)
    except ConfigError as error:
        raise ConfigError(f"{name}={text}: {error}") from error


def _arguments(
    kind: type[LossScale], words: str, text: str, name: str
) -> tuple[tuple[str, Any], ...]:
    """Return the arguments that words such as "initial=2,hysteresis=3" name."""
    types = {f.name: str(f.type) for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    readers: dict[str, Any] = {"float": float, "int": int, "str": str}
    values: dict[str, Any] = {}
    for part in filter(None, words.split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        if key in values:
            raise ConfigError(f"{name}: {key!r} is given more than once in {text!r}.")
        try:
            values[key] = readers[types[key]](value)
        except (KeyError, ValueError) as error:
            known = ", ".join(f"{k}=<{t}>" for k, t in types.items()) or "none"
            raise ConfigError(
                f"{name}: {part!r} in {text!r} is no argument; known are {known}."
            ) from error
    return _without_defaults(kind, sorted(values.items()))


def _without_defaults(
    kind: type[LossScale], given: Iterable[tuple[str, Any]]
) -> tuple[tuple[str, Any], ...]:
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return tuple((k, v) for k, v in given if defaults[k] != v)


@functools.cache
def _shared(word: str, arguments: tuple[tuple[str, Any], ...]) -> LossScale:
    kinds: dict[str, type[LossScale]] = {**_CLASSES, "static": StaticLossScale}
    return kinds[word](**dict(arguments))
