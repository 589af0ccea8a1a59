"""The record as a small file beside a checkpoint of another format.

    model.weights.h5    model.weights.h5.tf_amp.json

It is written whole or not at all. One that cannot be read is put aside, with one
warning, and the training starts fresh.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from absl import logging

from grappler_pass.costs.atomic_file import replacing
from tf_amp.checkpoints.record import (
    Record,
    RecordUnreadable,
    record_from_text,
    text_from_record,
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
    beside = path_beside(path)
    if record.is_empty:
        remove(path)
        return
    try:
        with replacing(beside) as file:
            file.write(text_from_record(record))
    except OSError as error:
        logging.log_first_n(
            logging.WARNING, "The loss scale is not kept beside %s: %s", 1, path, error
        )


def read(path: Any) -> Record | None:
    """Return the record beside a checkpoint; None where there is none to be read."""
    if _is_remote(path):
        return None
    beside = path_beside(path)
    try:
        return record_from_text(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        logging.warning("%s cannot be read, and is not heeded: %s", beside, error)
    except (RecordUnreadable, UnicodeDecodeError) as error:
        _put_aside(beside, error)
    return None


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
    logging.warning(
        "%s is damaged (%s) and not heeded; it is now %s.", beside, error, aside
    )


def _is_remote(path: Any) -> bool:
    """Tell whether a path is of a file system that only TensorFlow knows."""
    remote = "://" in os.fspath(path)
    if remote:
        logging.log_first_n(
            logging.WARNING,
            "Beside %s no loss scale or plan is kept: only beside local files.",
            1,
            path,
        )
    return remote
