"""Mutate a room where this runs, a copy of the sources, and run its tests each time.

`python -m tests.mutants.in_copy ROOM KNOWN COUNT` prints a line of JSON for each of
COUNT mutants but for the first KNOWN of them. The tests run in children of this
process, which has imported TensorFlow and none of ours.
"""

from __future__ import annotations

import difflib
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Sequence

from tests.mutants.rooms import ROOMS, SEED

_SECONDS = 300.0


def main() -> None:
    """Run the command line."""
    import hypothesis  # noqa: F401 - so that the children need not
    import pytest  # noqa: F401
    import tensorflow  # noqa: F401
    from cosmic_ray import mutating, plugins

    from tests.mutants.sample import drawn

    room, known, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if not passes(ROOMS[room], writes_code=True):
        sys.exit(f"the tests of {room} fail without any mutant")
    found = drawn(pathlib.Path(room), SEED)
    for number, mutation in enumerate(found[known:count], known + 1):
        operator = plugins.get_operator(mutation.operator_name)()
        path = mutation.module_path
        with mutating.use_mutation(path, operator, mutation.occurrence) as (old, new):
            survives = new is not None and passes(ROOMS[room], writes_code=False)
            told = {
                "number": number,
                "of": len(found),
                "survives": survives,
                "change": _change(path, old, new or old),
            }
            print(json.dumps(told), flush=True)


def passes(tests: Sequence[str], *, writes_code: bool) -> bool:
    """Run tests in a child; tell whether all of them pass in time."""
    child = os.fork()
    if not child:
        _be_tested(tests, writes_code)
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _be_tested(tests: Sequence[str], writes_code: bool) -> None:
    """Be the process of the tests, in a group of its own with what it starts."""
    status = 1
    try:
        import pytest

        os.setpgid(0, 0)
        # What was compiled of a mutant would be taken for its neighbor.
        sys.dont_write_bytecode = not writes_code
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        status = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))
    finally:
        os._exit(status)


def _change(path: pathlib.Path, old: str, new: str) -> str:
    """Return where a mutant differs, and the lines before and after."""
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), n=0))
    changed = [line for line in lines[2:] if not line.startswith("@@")]
    place = lines[2].split()[1].lstrip("-").partition(",")[0] if lines else "?"
    return "\n".join([f"{path}:{place}", *changed])


if __name__ == "__main__":
    main()
