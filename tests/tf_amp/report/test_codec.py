"""Dataclasses are written as JSON and read back equal, and nothing else is read."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import pytest

from tf_amp.report.codec import Stored


class Color(enum.Enum):
    RED = "as a sentence"


class Pair(NamedTuple):
    color: Color
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Place:
    JSON_ARRAY: ClassVar[bool] = True

    node: str
    index: int


@dataclasses.dataclass(frozen=True)
class Part:
    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("double",)

    size: float
    shape: tuple[int | None, ...] | None = None

    @property
    def double(self) -> float:
        return 2.0 * self.size


@dataclasses.dataclass(frozen=True)
class Whole(Stored):
    pair: Pair
    place: Place
    parts: tuple[Part, ...] = ()
    named: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    maybe: Part | None = None


WHOLE = Whole(
    Pair(Color.RED, "x"), Place("a", 1), (Part(2.5, (None, 3)),), {"n": Part(1.0)}
)


def test_what_is_written_is_read_back_equal() -> None:
    plain = json.loads(WHOLE.to_json())
    assert plain == {
        "pair": ["RED", "x"],
        "place": ["a", 1],
        "parts": [{"size": 2.5, "shape": [None, 3], "double": 5.0}],
        "named": {"n": {"size": 1.0, "shape": None, "double": 2.0}},
        "maybe": None,
    }
    assert Whole.from_json(WHOLE.to_json()) == WHOLE
    for size in (math.inf, -math.inf, math.nan):
        text = dataclasses.replace(WHOLE, maybe=Part(size)).to_json()
        written = json.loads(text, parse_constant=pytest.fail)["maybe"]
        assert written == {"size": str(size), "shape": None, "double": str(size)}
        assert str(Whole.from_json(text).maybe) == str(Part(size))
    del plain["parts"], plain["maybe"]
    assert Whole.from_json(json.dumps(plain)) == dataclasses.replace(WHOLE, parts=())


@pytest.mark.parametrize(
    "changed",
    [{"other": 1}, {"pair": ["GREEN"]}, {"parts": 3}, {"parts": [3]}, {"place": []}],
)
def test_what_no_such_class_has_written_is_refused(changed: dict[str, object]) -> None:
    fields = {**json.loads(WHOLE.to_json()), **changed}
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        Whole.from_json(json.dumps(fields))
