"""`tf-amp costs`: look at what was measured, and carry it to another machine.

tf-amp costs show [--sort seconds] [--op MatMul] [--device this] [--limit 20]
tf-amp costs export FILE | import FILE | merge FILE... --out FILE | clear
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_amp.commands.shared.arguments import add_rows_to
from tf_amp.config.amp_config import CACHE, AmpConfig
from tf_amp.config.counts import counted
from tf_amp.errors import UnreadableCostsError
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.costs.database.exchange import Export
    from grappler_pass.costs.database.price_database import CostDatabase
    from grappler_pass.costs.database.records import Row

SORTS = ("op", "dtype", "seconds", "spread", "count", "when")
_DEVICES = ("all", "this")
_PATIENCE_SECONDS = 10.0
_REFUSALS_SHOWN = 10
_ELSEWHERE = f"; {CACHE} names another folder to keep costs in"

SUMMARY = "show, carry along or clear what was measured"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `costs` to its parser."""
    commands = parser.add_subparsers(metavar="ACTION", required=True)
    show = commands.add_parser("show", help="print what was measured as a table")
    show.add_argument("--sort", choices=SORTS, default="op", help="order of the rows")
    show.add_argument("--op", metavar="NAME", help="only this op; * stands for any")
    add_rows_to(show, "--limit", 50)
    show.add_argument("--json", action="store_true", help="print JSON")
    _add_filters(show, _show)
    export = commands.add_parser("export", help="write it to a text file")
    export.add_argument("file", type=pathlib.Path, metavar="FILE", help="to write")
    _add_filters(export, _export)
    take = commands.add_parser("import", help="add the rows of an exported file")
    take.add_argument("file", type=pathlib.Path, metavar="FILE", help="to read")
    take.set_defaults(action=_import)
    merge = commands.add_parser(
        "merge", help="join exported files; of two figures the better supported stays"
    )
    merge.add_argument(
        "files", type=pathlib.Path, nargs="+", metavar="FILE", help="to read"
    )
    merge.add_argument(
        "--out", type=pathlib.Path, required=True, metavar="FILE", help="to write"
    )
    merge.set_defaults(action=_merge)
    clear = commands.add_parser("clear", help="forget what was measured, and say what")
    _add_filters(clear, _clear)


def _add_filters(parser: argparse.ArgumentParser, action: object) -> None:
    parser.add_argument(
        "--device",
        choices=_DEVICES,
        default="all",
        help="of all devices (default), or this",
    )
    parser.add_argument("--tensorflow", metavar="VERSION", help="only of this version")
    parser.set_defaults(action=action)


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    try:
        import sqlite3  # noqa: F401 - some builds of Python lack it
    except ModuleNotFoundError as error:
        raise UnreadableCostsError(f"this Python cannot keep costs: {error}") from error
    return int(options.action(options))


def _show(options: argparse.Namespace) -> int:
    from tf_amp.commands.shared import costs_table

    path, rows = _kept(options)
    if options.op is not None:
        rows = [row for row in rows if _is_of(row, options.op)]
    if options.json:
        print(costs_table.json_from(rows, sort=options.sort, limit=options.limit))
        return 0
    if not rows:
        name = f" of {options.op}" if options.op else ""
        print(f"no measured costs{name}{_filter_text(options)} in {path}")
        return 0
    costs_table.show(rows, sort=options.sort, limit=options.limit)
    return 0


def _export(options: argparse.Namespace) -> int:
    from grappler_pass.costs.database.exchange import write_export

    path, rows = _kept(options)
    with _clear_errors(options.file):
        count = write_export(options.file, rows)
    # The file may be standard output.
    written = counted(count, "row")
    print(f"{written} of {path} written to {options.file}", file=sys.stderr)
    return 0


def _import(options: argparse.Namespace) -> int:
    database = _database()
    export = _read(options.file)
    with _clear_errors(database.path, _ELSEWHERE):
        merged = database.put(export.rows) if export.rows else 0
    print(
        f"{options.file}: {counted(len(export.rows) - merged, 'row')} taken, {merged} "
        f"merged, {len(export.refused)} refused; kept in {database.path}"
    )
    _report_refusals(options.file, export)
    return 0 if export.rows or not export.refused else 1


def _merge(options: argparse.Namespace) -> int:
    from grappler_pass.costs.database.exchange import merge_exports, write_export

    exports = [_read(path) for path in options.files]
    rows = merge_exports(exports)
    with _clear_errors(options.out):
        write_export(options.out, rows)
    read = " and ".join(str(len(export.rows)) for export in exports)
    print(f"{read} rows made {len(rows)} in {options.out}", file=sys.stderr)
    for path, export in zip(options.files, exports, strict=True):
        _report_refusals(path, export)
    return 0


def _clear(options: argparse.Namespace) -> int:
    database = _database()
    removed = 0
    with _clear_errors(database.path, _ELSEWHERE):
        for where in _conditions(options) if database.path.exists() else ():
            removed += database.clear(where)
    print(
        f"{counted(removed, 'row')}{_filter_text(options)} removed from {database.path}"
    )
    return 0


def _database() -> CostDatabase:
    from grappler_pass.costs.database.price_database import CostDatabase, costs_path

    cache_dir = AmpConfig.from_env().cache_dir
    if cache_dir is None:
        raise UnreadableCostsError(f"there is no cache folder; {CACHE} names one")
    return CostDatabase(costs_path(cache_dir), patience_seconds=_PATIENCE_SECONDS)


def _read(path: pathlib.Path) -> Export:
    from grappler_pass.costs.database.exchange import ExportError, read_export

    try:
        with _clear_errors(path):
            return read_export(path)
    except ExportError as error:
        raise UnreadableCostsError(str(error)) from error


def _report_refusals(path: pathlib.Path, export: Export) -> None:
    for refusal in export.refused[:_REFUSALS_SHOWN]:
        print(f"{path}:{refusal.line}: refused: {refusal.reason}", file=sys.stderr)
    if (more := len(export.refused) - _REFUSALS_SHOWN) > 0:
        print(f"{path}: {counted(more, 'row')} more refused", file=sys.stderr)
    if export.missing:
        print(
            f"{path}: cut off, {counted(export.missing, 'row')} missing",
            file=sys.stderr,
        )


def _is_of(row: Row, op: str) -> bool:
    from grappler_pass.costs.database.records import CostRow

    name = row.measured.probe.op.lower() if isinstance(row, CostRow) else ""
    return fnmatch.fnmatchcase(name, op.lower())


def _kept(options: argparse.Namespace) -> tuple[pathlib.Path, list[Row]]:
    """Return the database's file, and those of its rows that the options choose."""
    database = _database()
    with _clear_errors(database.path, _ELSEWHERE):
        rows = database.rows()
    conditions = _conditions(options)
    return database.path, [
        row
        for row in rows
        if any(
            all(getattr(row, name) == value for name, value in condition.items())
            for condition in conditions
        )
    ]


def _conditions(options: argparse.Namespace) -> list[dict[str, str]]:
    """Return what rows may agree with: every value of one of these."""
    version = {"tensorflow": options.tensorflow} if options.tensorflow else {}
    if options.device == "all":
        return [version]
    from tf_amp.config import devices

    check_tensorflow()
    keys = {devices.cost_key(device) for device in devices.present_devices()}
    return [{"device": key, **version} for key in sorted(keys)]


def _filter_text(options: argparse.Namespace) -> str:
    device = "" if options.device == "all" else " of this device"
    return device + (f" of TensorFlow {options.tensorflow}" * bool(options.tensorflow))


@contextlib.contextmanager
def _clear_errors(path: pathlib.Path, remedy: str = "") -> Iterator[None]:
    """Raise what went wrong with a file as one line that names it."""
    import sqlite3

    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableCostsError(
            f"{path} cannot be used: {reason}{remedy}"
        ) from error
