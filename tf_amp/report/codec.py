"""Dataclasses as JSON and back, by their annotations.

An object has the fields of a dataclass, and beside them the properties that the class
names in `JSON_PROPERTIES`, which are for readers and are not read back. A member of an
enum is its name, a tuple an array.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_S = TypeVar("_S", bound="Stored")


class Stored:
    """A dataclass that is written as JSON, and loads back equal."""

    def to_json(self) -> str:
        """Return JSON that `from_json` loads back equal."""
        return to_json(self)

    @classmethod
    def from_json(cls: type[_S], text: str) -> _S:
        """Load what `to_json` wrote; ValueError, TypeError or KeyError otherwise."""
        return from_json(cls, text)


def to_json(value: Any) -> str:
    """Return a value with all dataclasses and enums in it as indented JSON.

    Numbers that JSON has no words for are text: "inf", "-inf" and "nan".
    """
    try:
        return json.dumps(value, default=plain, indent=1, allow_nan=False)
    except ValueError:
        text = json.dumps(value, default=plain)
        worded = json.loads(text, parse_constant=lambda name: str(float(name)))
        return json.dumps(worded, indent=1)


def plain(value: Any) -> Any:
    """Return the JSON form of a dataclass or an enum, whose contents are unchanged.

    Raises:
      TypeError: it is neither.
    """
    if isinstance(value, enum.Enum):
        return value.name
    names = [field.name for field in dataclasses.fields(value)]
    if getattr(value, "JSON_ARRAY", False):
        return [getattr(value, name) for name in names]
    names += getattr(value, "JSON_PROPERTIES", ())
    return {name: getattr(value, name) for name in names}


def from_json(cls: type[_T], text: str) -> _T:
    """Load what `to_json` wrote of a class; errors are those of `from_plain`."""
    return from_plain(cls, json.loads(text))


def from_plain(hint: type[_T], value: Any) -> _T:
    """Return the value of a type that `json.loads` has made plain.

    Raises:
      ValueError, TypeError, KeyError: it is none of that type.
    """
    return typing.cast("_T", _read(hint, value))


def _read(hint: Any, value: Any) -> Any:
    if getattr(hint, "JSON_ARRAY", False):
        return hint(*map(_read, _hints(hint).values(), value))
    if dataclasses.is_dataclass(hint):
        of: Any = hint
        hints: Mapping[str, Any] = _hints(of)
        names = value.keys() - set(getattr(of, "JSON_PROPERTIES", ()))
        return of(**{name: _read(hints[name], value[name]) for name in names})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (one,) = (each for each in arguments if each is not types.NoneType)
        return None if value is None else _read(one, value)
    if origin is tuple:
        is_open = arguments[1:] == (...,)
        parts = arguments[:1] * len(value) if is_open else arguments
        return tuple(map(_read, parts, value))
    if origin is Mapping:
        return {key: _read(arguments[1], each) for key, each in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint[value]
    if isinstance(hint, type) and issubclass(hint, tuple):
        return hint(*map(_read, _hints(hint).values(), value))
    if hint is float and isinstance(value, str):
        return float(value)
    return value


@functools.cache
def _hints(of: Any) -> Mapping[str, Any]:
    """Return the types of a class's fields, by name."""
    return {
        name: hint
        for name, hint in typing.get_type_hints(of).items()
        if typing.get_origin(hint) is not typing.ClassVar
    }
