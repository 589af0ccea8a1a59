"""Print where this process, and the kinds that tests start, import the packages from.

`python -m tests.faults.imported` is run in a copy of the sources.
"""

from __future__ import annotations

from tests.forking import run_forked, run_forked_command
from tests.fresh_process import run_interpreter
from tests.processes import Outcome, run_python

DONE = "that is all of them"
_NAMES = ("grappler_pass", "tf_amp", "keras_callbacks", "tests")
PROGRAM = "\n".join(
    f"import {name}; print('imported', {name}.__file__)" for name in _NAMES
)


def _print(outcome: Outcome) -> None:
    lines = [line for line in outcome.lines() if line.startswith("imported ")]
    assert len(lines) == len(_NAMES), lines
    print(*lines, sep="\n")


if __name__ == "__main__":
    exec(PROGRAM)
    _print(run_python(PROGRAM))
    _print(run_interpreter(["-c", PROGRAM]))
    _print(run_forked(PROGRAM))
    _print(run_forked_command(["-m", "tests.faults.imported_alone"]))
    print(DONE)
