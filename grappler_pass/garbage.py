"""When Python may look for garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Allocate without the collector walking all of TensorFlow's objects again.

    Reading and rewriting a graph makes many small objects and no cycles; collections in
    between are more than half of the time. One takes 0.2 s in a process that has
    imported TensorFlow and Keras.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
