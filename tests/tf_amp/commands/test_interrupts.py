"""Ctrl-C ends a command with one line; a script under `run` it ends as Python does."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.forking import run_forked_command
from tests.processes import run, sources

COMMANDS = {
    "audit": ("--device-profile", "v100"),
    "explain": (),
    "ranges": (),
    "report": (),
    "verify": (),
}
# As it is on a terminal; jobs in the background begin without it.
CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.raise_signal(signal.SIGINT)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(CTRL_C)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_that_it_was_interrupted(folder, command):
    arguments = ("-m", "tf_amp", command, *COMMANDS[command], "script.py")
    done = run_forked_command(arguments, cwd=folder)
    assert done.code == 130
    assert done.err.endswith("tf-amp: interrupted.\n")
    assert "Traceback" not in done.err


def test_a_script_that_is_run_ends_as_under_python(folder):
    command = (sys.executable, "-m", "tf_amp", "run", "script.py")
    done = run(command, env=sources(), cwd=folder)
    assert done.code == -signal.SIGINT
    assert done.err.endswith("KeyboardInterrupt\n")
    assert "tf-amp: interrupted" not in done.err
