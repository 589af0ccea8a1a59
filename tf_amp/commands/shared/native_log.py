"""The log of TensorFlow's native code, kept off the screen.

It goes to the file descriptor of standard error, whatever `sys.stderr` is, and no
setting of TensorFlow's silences all of it. So that descriptor is a pipe for a while, of
which everything is passed on but those lines.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator

_STDERR = 2
# INFO, WARNING and ERROR as written in C++; what is fatal is passed on.
_NATIVE = re.compile(
    rb"(?:[IWE]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IWE] ).*\.(?:cc|cu|h|inc):\d+\]"
    rb"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|To enable the following instructions: .* rebuild TensorFlow"
)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Hide it while the context lasts; what Python prints is printed."""
    # Where there is no such descriptor there is no screen either.
    try:
        kept = os.dup(_STDERR)
    except OSError:
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, kept), daemon=True)
    passing.start()
    try:
        with _printing_to(kept):
            yield
    finally:
        os.dup2(kept, _STDERR)
        # A child that lives on may hold the other end.
        passing.join(timeout=1.0)


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


def _pass_on(reading: int, kept: int) -> None:
    with open(reading, "rb") as lines, open(kept, "wb", buffering=0) as screen:
        for line in lines:
            if not _NATIVE.match(line):
                screen.write(line)
