"""What own steps have taught about prices, as tables or JSON: `doctor --learned`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import rich
from rich.markup import escape

from grappler_pass.costs.model import Lesson
from tf_amp.commands._results import show_json
from tf_amp.compare.verdicts import fields_of, lessons_in, memory_path
from tf_amp.config.amp_config import CACHE, AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.report.display import FittedTable

_COLUMNS = ("op and size", "type", "profile", "measured / predicted", "readings")


def show(*, as_json: bool) -> None:
    """Print the lessons of every device in the user's cache folder.

    Raises:
      ConfigError: there is no such folder.
    """
    cache_dir = AmpConfig.from_env().cache_dir
    if cache_dir is None:
        raise ConfigError(f"There is no folder where lessons are kept; {CACHE} is one.")
    path = memory_path(cache_dir)
    devices = {name: lessons_in(fields) for name, fields in fields_of(path).items()}
    if as_json:
        rows = [
            {"device": name, **_fields(cell, lesson)}
            for name, lessons in devices.items()
            for cell, lesson in sorted(lessons.items())
        ]
        show_json(rows)
        return
    if not any(devices.values()):
        print(f"Nothing was learned yet: {path} has no readings.")
    for name, lessons in devices.items():
        if lessons:
            rich.print(escape(name), _table(lessons.items()))


def _table(lessons: Iterable[tuple[str, Lesson]]) -> FittedTable:
    rows = (tuple(_cells(cell, lesson)) for cell, lesson in sorted(lessons))
    return FittedTable(_COLUMNS, rows, spare=("profile", "readings"))


def _cells(cell: str, lesson: Lesson) -> Iterator[str]:
    fields = _fields(cell, lesson)
    yield f"{fields['op']} {fields['size']}"
    yield fields["dtype"]
    yield fields["profile"]
    if lesson.is_believed:
        yield f"{lesson.ratio:.2f} (within {math.expm1(lesson.error):.0%})"
    elif lesson.logs:
        yield "not believed: readings are few, or disagree"
    else:
        yield "too short to tell"
    yield f"{len(lesson.logs)}"


def _fields(cell: str, lesson: Lesson) -> dict[str, Any]:
    name, _, profile = cell.rstrip(")").partition(" (")
    op, size, dtype = name.rsplit(" ", 2)
    return {
        "op": op,
        "size": size,
        "dtype": dtype,
        "profile": profile,
        "believed": lesson.is_believed,
        "ratio": lesson.ratio if lesson.logs else None,
        "readings": list(lesson.logs),
    }
