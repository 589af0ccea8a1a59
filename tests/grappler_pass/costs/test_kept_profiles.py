"""Profiles in the cache folder: broken files, and folders that cannot be written."""

import contextlib
import json
import logging
import os
import pathlib
import tempfile

import pytest

from grappler_pass.costs import (
    DeviceProfile,
    calibrated_path,
    calibrated_profile,
    keep_profile,
    profile_for,
)
from tests.grappler_pass.costs.test_device_profile import KEY, data


@pytest.mark.parametrize("text", ["{ broken", json.dumps(data(call_seconds="few"))])
def test_a_broken_file_is_set_aside_with_a_warning(tmp_path, caplog, text):
    path = calibrated_path(tmp_path, KEY)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert profile_for(None, KEY, tmp_path).name == "cpu-avx512-bf16"
    assert "broken device profile" in caplog.text
    assert not path.exists()
    assert path.with_suffix(".broken").read_text() == text
    keep_profile(DeviceProfile.from_json(data()), path)
    assert profile_for(None, KEY, tmp_path).name == "mine"


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where the folder should be")
    with tempfile.TemporaryDirectory() as name:
        read_only = pathlib.Path(name)
        read_only.chmod(0o555)
        for folder in (occupied, read_only):
            caplog.clear()
            path = calibrated_path(folder, KEY)
            with _as_nobody_special(), caplog.at_level(logging.WARNING, "absl"):
                kept = keep_profile(DeviceProfile.from_json(data()), path)
            assert kept is None and "was not kept" in caplog.text
            assert calibrated_profile(folder, KEY) is None


@contextlib.contextmanager
def _as_nobody_special():
    """Be another user than root, who may write everywhere."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_full_disk_keeps_the_old_profile_and_leaves_no_draft(
    tmp_path, caplog, monkeypatch
):
    path = calibrated_path(tmp_path, KEY)
    keep_profile(DeviceProfile.from_json(data(name="old")), path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert keep_profile(DeviceProfile.from_json(data()), path) is None
    assert "No space left" in caplog.text
    assert json.loads(path.read_text())["name"] == "old"
    assert list(path.parent.iterdir()) == [path]
