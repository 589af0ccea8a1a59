"""The native log is kept off the screen, and nothing else that goes there."""

from __future__ import annotations

import signal
import sys

from tests.forking import run_forked_command
from tests.processes import sources, started

COMMAND = (sys.executable, "-m", "tf_amp", "explain", "script.py")
LOG = "I0000 00:00:1795627006.288093 25469 port.cc:153] of no interest"
FATAL = "F0000 00:00:1795627006.288093 25469 port.cc:154] Check failed"


def test_what_a_process_writes_as_it_dies_is_shown(tmp_path):
    text = f"{LOG}\n{FATAL}\n".encode()
    # No other thread of Python runs until native code has ended the process.
    (tmp_path / "script.py").write_text(
        "import ctypes\n"
        "native = ctypes.PyDLL(None)\n"
        f"native.write(2, {text!r}, {len(text)}), native.abort()"
    )
    done = run_forked_command(COMMAND[1:], cwd=tmp_path)
    assert done.code == -signal.SIGABRT
    assert done.err.splitlines() == [FATAL]


def test_a_script_that_waits_for_its_children_waits_for_no_other(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os\n"
        "if not os.fork(): os._exit(0)\n"
        "os.wait()\n"
        "try: os.wait()\n"
        "except ChildProcessError: print('no more')\n"
    )
    assert "no more\n" in run_forked_command(COMMAND[1:], cwd=tmp_path).out


def test_a_child_that_lives_on_goes_on_writing_and_holds_nobody_up(tmp_path):
    later = "import os, time; time.sleep(3); os.write(2, b'from the child')"
    (tmp_path / "script.py").write_text(
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {later!r}])"
    )
    with started(COMMAND, cwd=tmp_path, env=sources()) as process:
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert process.stderr.read().endswith("from the child")
