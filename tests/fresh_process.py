"""Programs that tell which type a product was computed in, in fresh processes."""

from __future__ import annotations

import pathlib
import sys
import textwrap
from collections.abc import Mapping, Sequence

from tests.forking import run_forked
from tests.processes import Outcome, run, sources

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


def run_interpreter(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> Outcome:
    """Run this interpreter with arguments, and the source folder importable."""
    return run([sys.executable, *command], env={**sources(), **(env or {})}, cwd=cwd)


def output_of(program: str, *, env: Mapping[str, str] | None = None) -> list[str]:
    """Run PROBE and a program; return the lines it prints, or fail with its errors."""
    return run_forked(PROBE + textwrap.dedent(program), env=env).lines()
