"""Scripts that commands run: their frames, Ctrl-C, and what they print beside JSON."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest

from tests.command_lines import run_line
from tests.forking import run_forked
from tests.processes import run, sources
from tf_amp import errors
from tf_amp.tools.job_page import record_from_path

FAILING = """
def inner():
    raise {error}("its own")

inner()
"""
WRONG = """
import tf_amp
def build():
    tf_amp.enable(dtype="float8")
build()
"""
# As it is on a terminal; jobs in the background begin without it.
CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.raise_signal(signal.SIGINT)
"""
PRINTING = """
import atexit, os, subprocess
import tensorflow as tf

print("by python")
os.write(1, b"by the system\\n")
subprocess.run(["echo", "by a child"], check=True)
atexit.register(print, "at the end")
fn = tf.function(lambda x: tf.nn.relu(x @ x))
fn(tf.eye(256))
"""
SAID = ("by python", "by the system", "by a child", "at the end")
COMMANDS = (
    "explain",
    "verify --dtype bfloat16 --opt-level O2",
    "ranges",
    "audit --device-profile v100",
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING.format(error="ValueError"))
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "ctrl_c.py").write_text(CTRL_C)
    (tmp_path / "printing.py").write_text(PRINTING)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text(FAILING.format(error="ImportError"))
    return tmp_path


def frames_in(text):
    return re.findall(r'File "([^"]*)", line (\d+)', text)


@pytest.mark.parametrize("command", ["run", *COMMANDS, "report"])
def test_the_frames_are_those_of_the_script(folder, command):
    done = run_line(f"tf-amp {command} failing.py", folder)
    assert done.code == 1
    lines = [("failing.py", "5"), ("failing.py", "3")]
    assert frames_in(done.err) == lines, done.err
    assert "ValueError: its own" in done.err


@pytest.mark.parametrize(
    ("script", "frames"),
    [("broken.py", ["broken.py"]), ("-m pack.sub", ["pack/__init__.py"] * 2)],
)
def test_a_script_that_cannot_begin_has_no_frames_of_ours(folder, script, frames):
    done = run_line(f"tf-amp run {script}", folder)
    assert done.code == 1
    names = [name.removeprefix(f"{folder}/") for name, _ in frames_in(done.err)]
    assert names == frames, done.err


@pytest.mark.parametrize("script", ["wrong.py", "-m wrong"])
def test_an_error_of_ours_that_a_script_raises_is_the_scripts_own(folder, script):
    done = run_line(f"tf-amp run {script}", folder)
    assert done.code == 1
    assert "in build" in done.err and "received 'float8'" in done.err


def test_a_scripts_own_hook_gets_what_python_would_give_it(folder):
    (folder / "hooked.py").write_text(
        "import sys, traceback\n"
        "sys.excepthook = lambda kind, error, frames: print(\n"
        "    *(each.name for each in traceback.extract_tb(frames)))\n"
        "1 / 0\n"
    )
    done = run_line("tf-amp hooked.py", folder)
    assert done.out == "<module>\n", done.err


def test_a_wrong_variable_ends_a_program_with_one_line():
    program = """
from tf_amp.runtime import autostart
for attempt in range(3):
    try:
        autostart.start(None)
    except ValueError as error:
        print(error)
autostart.start(None)
"""
    env = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "TF_AMP_DTYPE": "float17"}
    done = run_forked(program, env=env)
    assert done.code == 1 and len(set(done.out.splitlines())) == 1
    said = done.out.splitlines()[0]
    assert said.startswith("TF_AMP_DTYPE: received 'float17'")
    line = f"tf-amp: the program ends here: {said.removesuffix('.')} (AMP114)\n"
    assert done.err == line


def test_other_errors_go_to_the_hook_that_was_there(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: seen.append(error))
    ours, other = ValueError(), KeyError()
    errors.show_from(ours, None)
    sys.excepthook(KeyError, other, None)
    sys.excepthook(ValueError, ours, other.__traceback__)
    assert seen == [(KeyError, other, None), (ValueError, ours, None)]


@pytest.mark.parametrize("command", ["explain", "report"])
def test_a_command_says_that_it_was_interrupted(folder, command):
    done = run_line(f"tf-amp {command} ctrl_c.py", folder)
    assert done.code == 130
    assert done.err.endswith("tf-amp: interrupted.\n")
    assert "Traceback" not in done.err


def test_a_script_that_is_run_and_interrupted_ends_as_under_python(folder):
    command = (sys.executable, "-m", "tf_amp", "run", "ctrl_c.py")
    done = run(command, env=sources(), cwd=folder)
    assert done.code == -signal.SIGINT
    assert done.err.endswith("KeyboardInterrupt\n")
    assert "tf-amp: interrupted" not in done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_holds_json_alone(folder, command):
    done = run_line(f"tf-amp {command} printing.py --json", folder)
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert [text for text in SAID if text in done.err] == list(SAID)
    if command.startswith("verify"):
        (folder / "numbers.json").write_text(done.out)
        assert len(record_from_path(folder / "numbers.json").verifications) == 1


def test_without_json_a_script_prints_where_it_always_does(folder):
    done = run_line("tf-amp explain printing.py", folder)
    assert [text for text in SAID if text in done.out] == list(SAID)
    assert not any(text in done.err for text in SAID)
