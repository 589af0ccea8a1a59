"""Processes of one machine take turns; those of other machines are not waited for."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.processes import ROOT
from tf_amp.tuning.machine_turn import machine_turn

# Holds the lock until its input ends, on the machine whose identity a file tells.
_HOLDING = """
import pathlib, sys
from tf_amp.tuning import machine_turn
if len(sys.argv) > 2:
    machine_turn._BOOT_ID = pathlib.Path(sys.argv[2])
with machine_turn.machine_turn(pathlib.Path(sys.argv[1]), 10.0) as is_mine:
    print(is_mine, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_machine_that_shares_the_folder_stops_no_other(
    is_elsewhere: bool, tmp_path: pathlib.Path
) -> None:
    other = tmp_path / "boot_id"
    other.write_text("another machine\n")
    arguments = [str(tmp_path), *[str(other)] * is_elsewhere]
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDING, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        with machine_turn(tmp_path, 0.0) as is_mine:
            assert is_mine is is_elsewhere
        holder.kill()
