"""Let threads that compile give way to those of the program, where Linux can do that.

Threads that a thread starts inherit its priority, and none can raise it again. They
inherit its name, too. What has another one runs what is compiled, and keeps its
priority.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator

# Linux gives such a thread a sixth of a core that another one wants for itself, so that
# steps on two cores take a twelfth longer. With the lowest priority, 19, it is a
# hundredth: then XLA is never done where all cores are busy.
_NICENESS = 7
_THREADS = pathlib.Path("/proc/self/task")
# Names of TensorFlow's threads that have XLA compile, among others, and of ours.
_OURS = "tf_amp_xla"
_COMPILING = ("tf_Compute", _OURS)


def give_way(thread: int) -> None:
    """Give a thread, by its native number, a lower priority than this one has."""
    # Elsewhere the number may be that of another process.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, thread, own + _NICENESS)


@contextlib.contextmanager
def new_compilers_give_way() -> Iterator[None]:
    """Give the threads that TensorFlow starts inside to compile a low priority."""
    before = _compilers()
    yield
    for thread in _compilers() - before:
        give_way(thread)


def become_compiler(start_xla: Callable[[], None]) -> None:
    """Let this thread give way, and those that XLA starts on it to compile."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        (_THREADS / str(thread) / "comm").write_text(_OURS)
    with new_compilers_give_way():
        start_xla()
    give_way(thread)


def _compilers() -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for folder in _THREADS.iterdir():
            # A thread may end meanwhile.
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text().strip() in _COMPILING:
                    found.add(int(folder.name))
    return found
