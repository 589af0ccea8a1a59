"""Write a file so that readers see the old one or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Yield a new file that takes the place of the one at `path` on leaving.

    Where anything fails the old file stays, and nothing is left beside it. A link goes
    on leading there; a pipe or a terminal is written to as it is.

    Raises:
        OSError: the folder is not there or cannot be written, or the disk is full.
    """
    if path.exists() and not path.is_file():
        # A folder refuses by itself.
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    path = path.resolve()
    # Containers that share a folder have the same numbers of processes and threads.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
