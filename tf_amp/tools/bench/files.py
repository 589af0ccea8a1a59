"""Files that are written whole or not at all, and checked before anything runs."""

from __future__ import annotations

import contextlib
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
    """Write a file in the place of another, which stays as it is if that fails."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # As any new file: `mkstemp` lets nobody else read it.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
