"""Files that are written whole or not at all, and checked before anything runs."""

from __future__ import annotations

import pathlib
import tempfile

from tf_amp.errors import ConfigError


def check_writable(option: str, path: pathlib.Path) -> None:
    """Refuse what could not be written in the end, before anything is run.

    ConfigError names the option and says why.
    """
    reason = ""
    if path.is_dir():
        reason = f"{path} is a folder"
    # A pipe or a terminal is written to as it is.
    elif path.is_file() or not path.exists():
        try:
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
        except OSError as error:
            reason = error.strerror or str(error)
    if reason:
        raise ConfigError(f"{option}: {path} cannot be written: {reason}.")


def write_whole(path: pathlib.Path, content: bytes) -> None:
    """Write a file in the place of another, which stays as it is if that fails.

    ConfigError says why.
    """
    # Slow to import, and not there in a broken installation.
    from grappler_pass.costs.atomic_file import replacing

    try:
        with replacing(path) as file:
            file.buffer.write(content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be written: {reason}.") from error
