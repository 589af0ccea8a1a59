"""Whether what a thread assigns is decided on already, or no matter of gradients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Thread(threading.local):
    takes_all: bool = False


_thread = _Thread()


def takes_all() -> bool:
    """Tell whether the running code is not to be asked for overflows."""
    return _thread.takes_all


@contextlib.contextmanager
def taking_all() -> Iterator[None]:
    """Let every step inside be taken, and whatever is assigned be assigned."""
    before, _thread.takes_all = _thread.takes_all, True
    try:
        yield
    finally:
        _thread.takes_all = before
