"""The lock file, of which each machine has a byte, and who holds that of this one.

The holder is to be asked for only while this process itself does not hold the lock:
closing the file would release it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pathlib
import platform
import struct

from tf_amp.measuring import progress

LOCK_NAME = "measuring.lock"
# The same in all containers of a machine, unlike its name.
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
# Places in the lock file: so many that two machines hardly share one.
_PLACE_BYTES = 3

# struct flock: type, whence, start, length, process; see fcntl(2), F_GETLK.
_FLOCK = "hhqqi"
_LONGEST_COMMAND = 60


def tell_who_measures(folder: pathlib.Path | None) -> None:
    """Note that another process holds the lock of a folder, if one does."""
    if progress.is_read() and (other := name_of_holder(folder)):
        progress.note(progress.Waiting(other))


def name_of_holder(folder: pathlib.Path | None) -> str:
    """Return the other process that measures here, for people; "": nobody does."""
    holder = None if folder is None else holder_of(folder)
    return "" if holder is None else _shown(holder)


def holder_of(folder: pathlib.Path) -> int | None:
    """Return the number of the other process that measures here; None: nobody does.

    It is 0 or less for one that cannot be seen from here, as in another container.
    """
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place(), 1, 0)
    try:
        with (folder / LOCK_NAME).open("rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except OSError:
        return None
    kind, *_, process = struct.unpack(_FLOCK, answer)
    return None if kind == fcntl.F_UNLCK else int(process)


@functools.cache
def place() -> int:
    """Return the byte of the lock file that is this machine's."""
    try:
        machine = _BOOT_ID.read_text()
    except OSError:
        machine = platform.node()
    made = hashlib.blake2b(machine.encode(), digest_size=_PLACE_BYTES)
    return int.from_bytes(made.digest(), "big")


def _shown(process: int) -> str:
    """Name a process by its number and its command line."""
    if process <= 0:
        return "another process"
    try:
        words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"process {process}"
    command = " ".join(word.decode(errors="replace") for word in words if word)
    if len(command) > _LONGEST_COMMAND:
        command = f"...{command[-_LONGEST_COMMAND:]}"
    return f"process {process} ({command})"
