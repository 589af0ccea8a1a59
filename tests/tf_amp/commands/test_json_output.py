"""What a script prints is not mixed with the JSON of a command that runs it."""

from __future__ import annotations

import json

import pytest

from tests.forking import run_forked_command
from tf_amp.tools.job_record import record_from_path

SCRIPT = """
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
COMMANDS = {
    "explain": (),
    "audit": ("--device-profile", "v100"),
    "verify": ("--dtype", "bfloat16", "--opt-level", "O2"),
    "ranges": (),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_holds_json_alone(folder, command):
    options = (*COMMANDS[command], "--json")
    arguments = ("-m", "tf_amp", command, "script.py", *options)
    done = run_forked_command(arguments, cwd=folder)
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert [text for text in SAID if text in done.err] == list(SAID)


def test_without_json_a_script_prints_where_it_always_does(folder):
    done = run_forked_command(("-m", "tf_amp", "explain", "script.py"), cwd=folder)
    assert [text for text in SAID if text in done.out] == list(SAID)
    assert not any(text in done.err for text in SAID)


def test_a_report_reads_what_verify_has_printed(folder):
    options = (*COMMANDS["verify"], "--json")
    arguments = ("-m", "tf_amp", "verify", "script.py", *options)
    (folder / "numbers.json").write_text(run_forked_command(arguments, cwd=folder).out)
    assert len(record_from_path(folder).verifications) == 1
