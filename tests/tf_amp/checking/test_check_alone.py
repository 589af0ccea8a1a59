"""Without the table the check alone finds what is wrong; without either it shows."""

from __future__ import annotations

import json
import pathlib

from grappler_pass.kernels.known_wrong import ROWS
from tests.forking import run_forked
from tests.tf_amp.checking.test_checked_plans import EMPTIED
from tests.wrong_kernels import PROGRAMS
from tf_amp import _tensorflow_private as private
from tf_amp.config import devices

# D2 ends the process, and in G nothing is a convolution or a product. A6 and B show if
# memory happens to hold something.
LEFT_OUT = ("D2", "G")
WRONG = 0.02

PROGRAM = """
import json
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass.kernels import known_wrong
from tests.wrong_kernels import PROGRAMS

errors = {}
for name, dtype in CASES:
    tf_amp.enable(dtype, opt_level="O2", strict=True, verbose=False, check=CHECK)
    program = PROGRAMS[name]
    random = np.random.default_rng(1)
    operands = [
        tf.constant(np.ones(s) if program.ones else random.integers(-2, 3, s),
        tf.float32) for s in program.shapes
    ]
    right = np.asarray(program.call(*operands))
    dirt = [np.full(1 << i, 63, np.uint8) for i in list(range(9, 21)) * 3]
    del dirt
    off = np.asarray(tf.function(program.call)(*operands)) - right
    errors[f"{name} {dtype}"] = float(
        np.linalg.norm(np.nan_to_num(off, nan=1e9)) / np.linalg.norm(right))
    tf_amp.disable()
print(json.dumps(errors))
"""


def faults_here() -> list[tuple[str, str]]:
    """Return the programs that are wrong on this CPU, with the type."""
    has_onednn = private.is_onednn_enabled()
    return sorted(
        {
            (name, dtype)
            for row in ROWS
            if row.library == ("oneDNN" if has_onednn else "Eigen") or not row.library
            if row.flags == "any" or devices.cpu_flags() & {*row.flags.split()}
            for name in PROGRAMS
            if name.partition(" ")[0] == row.name not in LEFT_OUT
            for dtype in row.dtypes.split()
        }
    )


def errors(cache: pathlib.Path, *, check: bool) -> dict[str, float]:
    """Return the errors of those programs through tf-amp, the table emptied."""
    head = f"CASES, CHECK = {faults_here()!r}, {check}\n"
    place = "from grappler_pass.kernels import known_wrong\n"
    env = {"TF_AMP_CACHE": str(cache)}
    done = run_forked(head + place + EMPTIED + PROGRAM, env=env)
    return json.loads(done.lines()[-1])


def test_the_check_alone_keeps_away_from_what_shows_without_it(
    tmp_path: pathlib.Path,
) -> None:
    unchecked = errors(tmp_path, check=False)
    wrong = {name for name, error in unchecked.items() if error > WRONG}
    assert any(name.startswith("F") for name in wrong)
    checked = errors(tmp_path, check=True)
    assert not {name: checked[name] for name in wrong if checked[name] > WRONG}
