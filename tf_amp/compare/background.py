"""Let threads that compile give way to those of the program, where Linux can do that.

Threads that a thread starts inherit its priority, and none can raise it again.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator

# Linux gives such a thread a tenth of a core that another one wants for itself. With
# the lowest priority, 19, it is a hundredth: then XLA is never done where all cores are
# busy.
_NICENESS = 10
_THREADS = pathlib.Path("/proc/self/task")
# The name of TensorFlow's threads that have XLA compile, among others; those that run
# what is compiled have another one.
_COMPILING = "tf_Compute"


def give_way(thread: int) -> None:
    """Give a thread, by its native number, a low priority."""
    # Elsewhere the number may be that of another process.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)


@contextlib.contextmanager
def new_compilers_give_way() -> Iterator[None]:
    """Give the threads that TensorFlow starts inside to compile a low priority."""
    before = _compilers()
    yield
    for thread in _compilers() - before:
        give_way(thread)


def _compilers() -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for folder in _THREADS.iterdir():
            # A thread may end meanwhile.
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text().strip() == _COMPILING:
                    found.add(int(folder.name))
    return found
