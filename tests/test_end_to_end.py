"""Unchanged training programs with the environment variable on, against float32."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.forking import run_forked_command
from tests.processes import ROOT
from tests.tolerance import EPSILON
from tf_amp.config.amp_config import OPT_LEVEL, STRICT, SWITCH
from tf_amp.runtime import autostart

PROGRAMS = ROOT / "tests" / "scripts" / "end_to_end_programs.py"
# Three standard deviations between two accuracies of 0.95 on 397 images.
TOLERANCE = 3 * (2 * 0.95 * 0.05 / 397) ** 0.5


@pytest.mark.parametrize(
    "kind", ["function", "keras", "legacy_keras", "session", "saved_model"]
)
def test_a_program_computes_in_16_bits_and_learns_as_well(
    kind: str, tmp_path: pathlib.Path
) -> None:
    starter = () if autostart.is_installed() else ("-m", "tf_amp", "run")
    for name in ("mixed", "float32"):
        (tmp_path / name).mkdir()
    # How programs are started, `test_packaging.py` shows.
    command = (*starter, str(PROGRAMS), kind, str(tmp_path))
    env = {SWITCH: "bfloat16", OPT_LEVEL: "O2", STRICT: "1"}
    done = run_forked_command(command, env=env, cwd=tmp_path)
    report = json.loads(done.lines()[-1])

    assert report["plans"] > 0
    assert report["low_products"] >= 2
    assert report["plans_after_disable"] == report["plans"]
    # Really 16 bits, and no more off than two products in 16 bits.
    epsilon = EPSILON["bfloat16"]
    assert epsilon / 256 < report["difference"] < 4 * epsilon
    assert report["float32"] > 0.85
    assert abs(report["mixed"] - report["float32"]) < TOLERANCE
    clean = kind == "saved_model"
    assert set(report["dtypes"]) == ({"clean"} if clean else {"float32"})
