"""Draw the mutants of a room: cosmic-ray lists them, a seed chooses."""

from __future__ import annotations

import ast
import pathlib
import random
import re
from collections.abc import Iterator, Sequence

from cosmic_ray.commands.init import init
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec

# From line and column to line and column.
_Span = tuple[tuple[int, int], tuple[int, int]]
# Of `is`, nothing but `is not` is another program: None and enums have no order here.
_SENSELESS = re.compile(r".*ReplaceComparisonOperator_(Is_(?!IsNot)|IsNot_(?!Is$))")


def drawn(room: pathlib.Path, seed: int) -> list[MutationSpec]:
    """Return the mutants of a room's modules, in an order that a seed decides."""
    modules = sorted(room.rglob("*.py"))
    database = WorkDB(":memory:", WorkDB.Mode.create)
    init(modules, database, {})
    unseen = {module: list(_annotations(module)) for module in modules}
    found = [
        mutation
        for item in database.work_items
        for mutation in item.mutations
        if not _SENSELESS.match(mutation.operator_name)
        and not _is_within(mutation, unseen[mutation.module_path])
    ]
    found.sort(key=lambda m: (m.module_path, m.operator_name, m.occurrence))
    random.Random(seed).shuffle(found)
    return found


def _annotations(module: pathlib.Path) -> Iterator[_Span]:
    """Yield where annotations stand, which nothing evaluates."""
    for node in ast.walk(ast.parse(module.read_text())):
        for name in ("annotation", "returns"):
            annotation = getattr(node, name, None)
            if annotation is not None:
                begin = annotation.lineno, annotation.col_offset
                yield begin, (annotation.end_lineno, annotation.end_col_offset)


def _is_within(mutation: MutationSpec, spans: Sequence[_Span]) -> bool:
    return any(begin <= tuple(mutation.start_pos) < end for begin, end in spans)
