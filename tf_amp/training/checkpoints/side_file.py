"""The record as a small file beside a checkpoint of another format.

    model.weights.h5    model.weights.h5.tf_amp.json

It is written whole or not at all, and before the checkpoint itself, which may then not
come about: so it holds the record before this one as well, and each says what weights
it belongs to. A file that cannot be read is put aside, with one warning, and the
training starts fresh.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from grappler_pass.costs.atomic_file import replacing
from tf_amp.errors import UnreadableRecordError
from tf_amp.message_codes import Code
from tf_amp.training.checkpoints.record import (
    Record,
    records_from_text,
    text_from_records,
)

SUFFIX = ".tf_amp.json"
ASIDE = ".corrupt"


def path_beside(path: Any) -> pathlib.Path:
    """Return where the record of a checkpoint is."""
    return pathlib.Path(os.fspath(path) + SUFFIX)


def write(path: Any, record: Record) -> None:
    """Put a record beside a checkpoint; an empty one removes what is there.

    A folder that cannot be written costs one warning, never a checkpoint.
    """
    if _is_remote(path):
        return
    if record.is_empty:
        remove(path)
        return
    before = [one for one in read(path) if one.step != record.step]
    text = text_from_records([record, *before[:1]])
    try:
        with replacing(path_beside(path)) as file:
            file.write(text)
    except OSError as error:
        Code.NOT_WRITTEN.warn_once(
            "The loss scale is not kept beside %s: %s", path, error
        )


def read(path: Any) -> tuple[Record, ...]:
    """Return the records beside a checkpoint, the latest first; none if unreadable."""
    if _is_remote(path):
        return ()
    beside = path_beside(path)
    try:
        return records_from_text(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        Code.RECORD_IS_UNUSABLE.warn(
            "%s cannot be read, and is not used: %s", beside, error
        )
    except (UnreadableRecordError, UnicodeDecodeError) as error:
        _put_aside(beside, error)
    return ()


def remove(path: Any) -> None:
    """Remove the record beside a checkpoint, if there is one."""
    if not _is_remote(path):
        path_beside(path).unlink(missing_ok=True)


def _put_aside(beside: pathlib.Path, error: Exception) -> None:
    aside = beside.with_name(beside.name + ASIDE)
    try:
        beside.replace(aside)
    except OSError:
        aside = beside
    Code.RECORD_IS_UNUSABLE.warn(
        "%s is damaged (%s) and not used; it is now %s.",
        beside,
        error,
        aside,
    )


def _is_remote(path: Any) -> bool:
    """Return whether a path is of a file system that only TensorFlow knows."""
    remote = "://" in os.fspath(path)
    if remote:
        Code.NOT_WRITTEN.warn_once(
            "Beside %s no loss scale or plan is kept: only beside local files.", path
        )
    return remote
