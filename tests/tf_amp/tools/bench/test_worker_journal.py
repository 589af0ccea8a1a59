"""What a process writes down, and what of it is read back."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from tf_amp.tools.bench.journal import (
    Journal,
    OpCounts,
    lines_of,
    sampled_values,
)


def test_lines_are_read_as_they_were_written(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    assert journal.function("step", OpCounts(3, 2, 1, 0)) == 0
    journal.call(0, 1.0, 2.0)
    journal.step("train", 1.0, 2.0, 4)
    journal.values("train", 0.5)
    counts = {"total": 3, "low": 2, "casts": 1, "onednn": 0}
    assert lines_of(path) == [
        ["function", 0, "step", counts],
        ["call", 0, 1.0, 2.0],
        ["step", "train", 1.0, 2.0, 4],
        ["values", "train", [0.5]],
    ]


def test_a_torn_line_and_a_missing_file_are_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    assert lines_of(path) == []
    Journal(path).call(0, 1.0, 2.0)
    with path.open("a") as file:
        file.write('["call", 0')
    assert lines_of(path) == [["call", 0, 1.0, 2.0]]


def test_a_forked_child_writes_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    child = os.fork()
    if not child:
        journal.call(0, 1.0, 2.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert lines_of(path) == []


def test_the_clock_stands_still_while_a_call_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal")
    monkeypatch.setattr(journal, "_write", lambda *_: time.sleep(0.2))
    begin = journal.now()
    journal.call(0, 1.0, 2.0)
    assert journal.now() - begin < 0.2


def test_the_clock_stands_still_while_something_is_looked_at(
    tmp_path: pathlib.Path,
) -> None:
    journal = Journal(tmp_path / "journal")
    begin = journal.now()
    with journal.looking():
        time.sleep(0.2)
    assert journal.now() - begin < 0.2


def test_no_more_is_written_of_one_thing_than_is_of_use(
    tmp_path: pathlib.Path, monkeypatch
) -> None:
    monkeypatch.setattr("tf_amp.tools.bench.journal._MOST_LINES", 2)
    journal = Journal(tmp_path / "journal")
    for _ in range(3):
        journal.call(0, 1.0, 2.0)
        journal.call(1, 1.0, 2.0)
    assert len(lines_of(tmp_path / "journal")) == 4


def test_results_are_sampled_evenly_and_counts_left_out() -> None:
    import numpy as np

    ramp = np.arange(10_000, dtype=np.float32)
    found = sampled_values({"b": ramp, "a": 0.5, "count": np.int64(3), "no": None})
    assert found[0] == 0.5 and len(found) == 1 + 128
    assert found[1] == 0.0 and found[-1] == 9999.0
    assert sampled_values(None) == sampled_values(np.zeros((0,))) == []


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "{}",
        "3",
        '["call", 0, 1.0]',
        '["call", 0, 1.0, "later"]',
        '["call", 0, 2.0, 1.0]',
        '["call", 0, 1.0, Infinity]',
        '["step", "train", 1.0, 2.0, 0]',
        '["values", "train", ["x"]]',
        '["function", 0, "step", {"total": 1}]',
        "\x00\xff",
    ],
)
def test_a_line_that_no_journal_has_is_left_out(
    line: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal"
    Journal(path).call(0, 1.0, 2.0)
    with path.open("a") as file:
        file.write(f"{line}\n")
    assert lines_of(path) == [["call", 0, 1.0, 2.0]]
    assert caplog.text.count(str(path)) == 1
