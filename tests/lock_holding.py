"""A process that holds the lock of a folder, and measures nothing."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from tests.processes import ROOT, started

# On the machine whose identity a file tells, if one is given.
_HOLDING = """
import pathlib, sys
from tf_amp.measuring import machine_turn
if len(sys.argv) > 2:
    machine_turn._BOOT_ID = pathlib.Path(sys.argv[2])
with machine_turn.machine_turn(pathlib.Path(sys.argv[1]), 10.0) as is_mine:
    print(is_mine, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def lock_held(
    folder: pathlib.Path, boot_id: pathlib.Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold the lock of a folder until it is killed at the end.

    Args:
      folder: of the database.
      boot_id: file with the identity of another machine that it shall be on.
    """
    arguments = [folder, *([] if boot_id is None else [boot_id])]
    with started([sys.executable, "-c", _HOLDING, *arguments], cwd=ROOT) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        yield holder
