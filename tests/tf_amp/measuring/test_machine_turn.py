"""Processes of one machine take turns; those of other machines are not waited for."""

from __future__ import annotations

import concurrent.futures as futures
import os
import pathlib

import pytest
import tensorflow as tf

import tf_amp
from tests.lock_holding import lock_held
from tf_amp.commands import cli
from tf_amp.config.amp_config import CACHE
from tf_amp.errors import NotMeasurableError
from tf_amp.measuring import machine_turn
from tf_amp.measuring.machine_turn import asked_turn, process_turn


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return an empty cache folder, whose lock nobody waits for long."""
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(machine_turn, "_PATIENCE_SECONDS", 0.05)
    return tmp_path


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_machine_that_shares_the_folder_stops_no_other(
    is_elsewhere: bool, tmp_path: pathlib.Path
) -> None:
    other = tmp_path / "boot_id"
    other.write_text("another machine\n")
    with lock_held(tmp_path, other if is_elsewhere else None):
        with machine_turn.machine_turn(tmp_path, 0.0) as is_mine:
            assert is_mine is is_elsewhere


def test_a_graph_is_not_measured_beside_another_process(folder: pathlib.Path) -> None:
    def explain() -> object:
        return tf_amp.explain(lambda x: x + 1.0, tf.TensorSpec([8, 8]), measure=True)

    with lock_held(folder) as holder:
        with pytest.raises(NotMeasurableError, match=f"process {holder.pid} "):
            explain()
    assert explain()


def test_a_device_is_not_calibrated_beside_another_process(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_held(folder) as holder:
        assert cli.main(["calibrate", "--seconds", "1"]) != 0
    assert f"process {holder.pid} " in capsys.readouterr().err
    assert not list(folder.glob("*.json"))


def test_figures_are_not_asked_for_beside_another_thread(folder: pathlib.Path) -> None:
    with process_turn(0.0) as is_mine, futures.ThreadPoolExecutor(1) as pool:
        assert is_mine
        with pytest.raises(NotMeasurableError, match="Another thread"):
            pool.submit(asked_turn(folder).__enter__).result(10.0)
    with asked_turn(folder), process_turn(0.0) as is_mine:
        assert not is_mine


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(
    tmp_path: pathlib.Path,
) -> None:
    read, write = os.pipe()
    with machine_turn.machine_turn(tmp_path, 0.0) as is_mine:
        assert is_mine
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        with machine_turn.machine_turn(tmp_path, 10.0) as is_mine:
            assert is_mine
    finally:
        os.close(write)
        os.waitpid(child, 0)
