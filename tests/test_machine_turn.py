"""Processes of one machine take turns; those of other machines are not waited for."""

from __future__ import annotations

import pathlib

import pytest

from tests.lock_holding import lock_held
from tf_amp.tuning.machine_turn import machine_turn


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_machine_that_shares_the_folder_stops_no_other(
    is_elsewhere: bool, tmp_path: pathlib.Path
) -> None:
    other = tmp_path / "boot_id"
    other.write_text("another machine\n")
    with lock_held(tmp_path, other if is_elsewhere else None):
        with machine_turn(tmp_path, 0.0) as is_mine:
            assert is_mine is is_elsewhere
