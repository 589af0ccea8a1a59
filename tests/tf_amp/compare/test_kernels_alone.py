"""Programs whose kernels are wrong: right through tf-amp, by the table or the check."""

from __future__ import annotations

import json
import pathlib

import pytest

from grappler_pass.eligibility.known_wrong import ROWS
from tests.forking import run_forked
from tests.tf_amp.compare.test_checked_plans import EMPTIED
from tests.wrong_kernels import PROGRAMS
from tf_amp import _tensorflow_private as private
from tf_amp.config import devices

# D2 and M end the process, and in G nothing is a convolution or a product.
LEFT_OUT = ("D2", "M", "G")
WRONG = 0.02

PROGRAM = """
import json
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass.eligibility import known_wrong
from tests.wrong_kernels import PROGRAMS

errors = {}
for name, dtype in CASES:
    tf_amp.enable(dtype, opt_level=LEVEL, strict=True, verbose=False, check=CHECK)
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


def errors(
    cache: pathlib.Path,
    cases: list[tuple[str, str]],
    *,
    level: str = "O2",
    table: bool = True,
    check: bool = True,
) -> dict[str, float]:
    """Return the errors of programs through tf-amp."""
    head = f"CASES, LEVEL, CHECK = {cases!r}, {level!r}, {check}\n"
    place = "from grappler_pass.eligibility import known_wrong\n"
    emptied = "" if table else place + EMPTIED
    done = run_forked(head + emptied + PROGRAM, env={"TF_AMP_CACHE": str(cache)})
    return json.loads(done.lines()[-1])


def test_the_check_alone_keeps_away_from_what_shows_without_it(
    tmp_path: pathlib.Path,
) -> None:
    cases = faults_here()
    unchecked = errors(tmp_path, cases, table=False, check=False)
    wrong = {name for name, error in unchecked.items() if error > WRONG}
    assert any(name.startswith("F") for name in wrong)
    checked = errors(tmp_path, cases, table=False)
    assert not {name: checked[name] for name in wrong if checked[name] > WRONG}


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_no_program_is_wrong_in_either_type(level: str, tmp_path: pathlib.Path) -> None:
    # D2 is as wrong in float32.
    cases = [(n, t) for n in PROGRAMS if n != "D2" for t in ("bfloat16", "float16")]
    found = errors(tmp_path, cases, level=level)
    assert not {name: error for name, error in found.items() if error > WRONG}
