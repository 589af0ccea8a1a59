"""Programs run in processes of their own, since a plugin cannot be unregistered.

`PROBE` is put in front of a program: `dtype_of(fn)` tells from the result of a product
which type it was computed in.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 240
_OURS = ("TF_AMP_", "TF_ENABLE_AUTO_MIXED", "TF_AUTO_MIXED")

# float32 keeps both low bits of VALUE, float16 one of them, bfloat16 none.
PROBE = """
import threading
import tensorflow as tf
import tf_amp

VALUE = 1 + 2**-9 + 2**-12
DTYPES = {1.0: "bfloat16", 1 + 2**-9: "float16", VALUE: "float32"}
X, EYE = tf.eye(8) * VALUE, tf.eye(8)

def product():
    return tf.function(lambda x, y: tf.nn.relu(x @ y))

def dtype_of(fn):
    return DTYPES[float(fn(X, EYE)[0, 0])]
"""


def run_python(
    program: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    cwd: pathlib.Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program's text, without our own variables but those in `env`."""
    command = (*options, "-c", textwrap.dedent(program), *arguments)
    return run_interpreter(command, env=env, cwd=cwd)


def run_interpreter(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with the source folder importable."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command],
        env={**inherited, **quiet, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def output_of(program: str, *, env: Mapping[str, str] | None = None) -> list[str]:
    """Run PROBE and a program; return the lines it prints, or fail with its errors."""
    text = PROBE + textwrap.dedent(program)
    done = run_python(text, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()
