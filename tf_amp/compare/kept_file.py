"""A JSON file of what was found out, which processes share, and anybody may have made.

Reading believes nothing: a file that is something else is left out with one warning,
and what is in it is checked by who knows it. A process adds to what the file says by
then, and replaces it whole, with the rights that its user's files have. No process
waits for another; where two write at once, the last one may take away what the other
has added. Where nothing can be read or written, the process alone remembers, and
says so once, of whatever files there are.
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from grappler_pass.costs.atomic_file import replacing
from grappler_pass.fork_safety import renewed_lock
from tf_amp.message_codes import Code

_FORMAT = 1
# More than any machine comes to; to read it takes half a second.
_MOST_BYTES = 32 * 2**20

Fields = dict[str, Any]


class KeptFile:
    """One file; several threads may use it."""

    def __init__(self, path: pathlib.Path | None, part: str) -> None:
        """Take a path, None where nothing is kept, and the mapping it must hold."""
        self._path, self._part = path, part
        self._lock = renewed_lock()

    def read(self) -> Fields:
        """Return its fields; none where it is not there, or is something else."""
        if self._path is None:
            return {}
        try:
            return _fields_in(self._path, self._part)
        except OSError as error:
            _warn_of_denial(self._path, error)
            return {}

    def change(self, change: Callable[[Fields], None]) -> None:
        """Have what it says by now changed, and write that."""
        if self._path is None:
            return
        try:
            with self._lock:
                fields = _fields_in(self._path, self._part)
                change(fields)
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(self._path) as file:
                    json.dump({**fields, "format": _FORMAT}, file, indent=1)
        except OSError as error:
            _warn_of_denial(self._path, error)


def fields_from(text: str, part: str) -> Fields:
    """Return the fields in the text of such a file.

    Raises:
      ValueError: it is no such text, or lacks the mapping that is named.
    """
    try:
        fields = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise ValueError("it is no such file, or of another version")
    if not isinstance(fields.get(part), dict):
        raise ValueError(f"it has no {part}")
    return fields


def mapping_in(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the mapping of a name; nothing where that is none."""
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def is_number(value: object) -> bool:
    """Return whether a value is a number that can be reckoned with."""
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False


def is_line(value: object) -> bool:
    """Return whether a value is text that may be shown as a line."""
    return isinstance(value, str) and value.isprintable()


def _fields_in(path: pathlib.Path, part: str) -> Fields:
    """Return the fields of a file; OSError where it cannot be read."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise OSError("it is no file")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        return fields_from(path.read_text(encoding="utf-8"), part)
    except ValueError as error:
        _warn_of_content(path, str(error))
        return {}


@functools.cache
def _warn_of_content(path: pathlib.Path, why: str) -> None:
    logging.warning("%s is ignored, and measured again: %s", path, why)


def _warn_of_denial(path: pathlib.Path, error: OSError) -> None:
    Code.NOT_WRITTEN.warn_once(
        "What is found out about this machine is remembered by this process alone: %s "
        "cannot be read and written: %s",
        path,
        error.strerror or error,
    )
