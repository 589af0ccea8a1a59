"""Files that are written whole or not at all, and checked before anything runs."""

from __future__ import annotations

import os
import pathlib
import tempfile

from tf_amp.errors import ConfigError


def check_writable(path: pathlib.Path, option: str) -> None:
    """Refuse a file that could not be written in the end.

    Raises:
      ConfigError: it could not; the message says why.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{option}: {path} cannot be written: {reason}.") from error


def write_whole(path: pathlib.Path, content: bytes) -> None:
    """Write a file in the place of another, which stays as it is if that fails.

    Raises:
      ConfigError: it cannot be written; the message says why.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be written: {reason}.") from error
    finally:
        beside.unlink(missing_ok=True)
