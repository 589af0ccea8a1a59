"""What is known of kernels is kept in a file per machine."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from tf_amp.checking import known as outcomes
from tf_amp.checking.known import Outcomes


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "kernels" / "here.json"


def test_what_one_process_finds_the_next_one_knows(path: pathlib.Path) -> None:
    Outcomes("here", path).add({"right": "", "wrong": "3 of 4 off"})
    known = Outcomes("here", path)
    assert "right" in known and "wrong" in known and "other" not in known
    assert known.fault("wrong") == "3 of 4 off"
    assert known.fault("right") == known.fault("other") == ""
    assert known.wrong == {"wrong": "3 of 4 off"}


def test_what_two_processes_find_at_once_is_all_kept(path: pathlib.Path) -> None:
    first, second = Outcomes("here", path), Outcomes("here", path)
    first.add({"a": ""})
    second.add({"b": "off"})
    known = Outcomes("here", path)
    assert "a" in known and "b" in known


def test_another_machines_file_counts_for_nothing(path: pathlib.Path) -> None:
    Outcomes("elsewhere", path).add({"a": "off"})
    assert "a" not in Outcomes("here", path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 99}'])
def test_a_damaged_file_is_replaced_by_the_next_check(
    path: pathlib.Path, text: str
) -> None:
    path.parent.mkdir()
    path.write_text(text)
    damaged = Outcomes("here", path)
    assert not damaged.wrong
    damaged.add({"a": "off"})
    assert Outcomes("here", path).fault("a") == "off"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_costs_no_more_than_a_warning(
    tmp_path: pathlib.Path,
) -> None:
    tmp_path.chmod(0o500)
    known = Outcomes("here", tmp_path / "kernels" / "here.json")
    known.add({"a": "off"})
    assert known.fault("a") == "off"


def test_a_file_in_place_of_the_folder_costs_no_more_than_a_warning(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "kernels").write_text("")
    known = Outcomes("here", tmp_path / "kernels" / "here.json")
    known.add({"a": "off"})
    assert known.fault("a") == "off"


def test_what_ships_with_the_package_is_of_named_machines() -> None:
    files = sorted(pathlib.Path(outcomes.__file__).parent.glob("shipped/*.json"))
    assert files
    for file in files:
        fields = json.loads(file.read_text())
        machine = fields["machine"]
        assert outcomes.shipped(machine) == fields["kernels"] != {}
        assert not outcomes.shipped(f"not {machine}")
