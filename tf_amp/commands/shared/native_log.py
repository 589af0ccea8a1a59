"""The log of TensorFlow's native code, kept off the screen.

It goes to the file descriptor of standard error, whatever `sys.stderr` is, and no
setting of TensorFlow's silences all of it. So that descriptor is a pipe for a while, of
which another process passes on everything but those lines, even if this one is aborted.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import subprocess
import sys
from collections.abc import Iterator

_STDERR = 2
_FILTER = pathlib.Path(__file__).with_name("native_log_filter.py")


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Hide it while the context lasts; what Python prints is printed."""
    # Where there is no such descriptor there is no screen either.
    try:
        kept = os.dup(_STDERR)
    except OSError:
        yield
        return
    ended = _filtered(kept)
    try:
        with _printing_to(kept):
            yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        if ended is not None:
            # A child that lives on may hold the other end.
            select.select([ended], [], [], 1.0)
            os.close(ended)


def _filtered(kept: int) -> int | None:
    """Let standard error be a pipe to the filter, which writes to another descriptor.

    Returns:
      A descriptor that comes to its end when the filter does; None where no process
      can be started, and all is shown.
    """
    reading, writing = os.pipe()
    ended, end = os.pipe()
    # Alone, it needs neither what is installed nor what starts with Python here.
    command = [sys.executable, "-I", "-S", str(_FILTER)]
    try:
        subprocess.run(
            command, stdin=reading, stdout=end, stderr=kept, cwd="/", check=True
        )
        os.dup2(writing, _STDERR)
    except (OSError, subprocess.CalledProcessError):
        os.close(ended)
        return None
    finally:
        for each in (reading, writing, end):
            os.close(each)
    return ended


@contextlib.contextmanager
def _printing_to(descriptor: int) -> Iterator[None]:
    """Let Python's own standard error be what it was, a terminal perhaps."""
    before = sys.stderr
    try:
        is_descriptor = before.fileno() == _STDERR
    except (AttributeError, OSError, ValueError):
        is_descriptor = False
    if not is_descriptor:
        yield
        return
    before.flush()
    with open(
        os.dup(descriptor),
        "w",
        buffering=1,
        encoding=before.encoding,
        errors=before.errors,
    ) as stream:
        sys.stderr = stream
        try:
            yield
        finally:
            sys.stderr = before
