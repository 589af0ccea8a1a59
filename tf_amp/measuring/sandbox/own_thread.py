"""Run work in a thread of its own while a graph waits for its plan.

Within the callback from Grappler the calling thread may have a graph as default, be
inside a trace, or be one of TensorFlow's own. A fresh thread has none of that. It ends
with the work: none is left idle, so none is lost in a fork or awaited at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from tf_amp.errors import AmpError
from tf_amp.tracing import bypass

_T = TypeVar("_T")


class StuckError(AmpError, RuntimeError):
    """Work did not end in time, and was given up."""


def _return_memory() -> None:
    """Give back to the system what a thread has freed, which glibc would keep."""
    # Another libc has no such function.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_leaving = threading.Event()
# Work under way must end before the interpreter does.
atexit.register(_leaving.set)


def run_in_own_thread(work: Callable[[Callable[[], bool]], _T], patience: float) -> _T:
    """Run `work` in a thread of its own, wait, and return or raise its outcome.

    The caller may hold no lock that the work could need. Graphs that the work runs are
    not rewritten. It gets a function that returns whether to stop: the one who waits
    has been interrupted, or the program is about to exit. The patience is far more
    seconds than it is meant to take.

    Raises:
      StuckError: it is still under way; it stops as soon as it asks.
    """
    unwanted = threading.Event()
    results: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            with bypass.leaving_graphs_alone():
                results.append(work(lambda: unwanted.is_set() or _leaving.is_set()))
        except BaseException as error:
            errors.append(error)
        _return_memory()

    thread = threading.Thread(target=body, name="tf-amp measures", daemon=True)
    thread.start()
    try:
        thread.join(patience)
    finally:
        unwanted.set()
    if errors:
        raise errors[0]
    if not results:
        raise StuckError(f"a measurement has not ended after {patience:.0f} seconds")
    return results[0]
