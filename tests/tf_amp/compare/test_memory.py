"""One file of what own steps have shown, shared by processes; nothing in it is lost."""

from __future__ import annotations

import json
import pathlib

import pytest

from tf_amp.compare.verdicts import FILE, KeptVerdict, StepMemory

VERDICT = KeptVerdict("step", True, 2.0, 1.0, 1e9)
CELL = "matmul 256x256x256 bfloat16 (cpu-generic)"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cache" / FILE


def test_verdicts_and_lessons_outlive_the_process(path: pathlib.Path) -> None:
    memory = StepMemory("this CPU", path)
    memory.keep("print", VERDICT)
    memory.learn({CELL: [0.1, 0.2, 0.15]})
    later = StepMemory("this CPU", path)
    assert later.is_faster("print") is True
    assert later.is_faster("another") is None
    assert later.learned.believed(CELL).logs == (0.1, 0.2, 0.15)
    elsewhere = StepMemory("another CPU", path)
    assert elsewhere.is_faster("print") is None
    assert not elsewhere.learned.lessons


def test_what_another_process_has_added_meanwhile_stays(path: pathlib.Path) -> None:
    one, other, third = (StepMemory(name, path) for name in ("a", "a", "b"))
    one.keep("one", VERDICT)
    other.keep("other", VERDICT._replace(faster=False))
    third.learn({CELL: [0.5]})
    one.learn({CELL: [0.1]})
    other.learn({CELL: [0.2]})
    later = StepMemory("a", path)
    assert (later.is_faster("one"), later.is_faster("other")) == (True, False)
    assert later.learned.lessons[CELL].logs == (0.1, 0.2)
    assert StepMemory("b", path).learned.lessons[CELL].logs == (0.5,)


def test_what_was_decided_without_being_kept_is_of_this_process(
    path: pathlib.Path,
) -> None:
    memory = StepMemory("this CPU", path)
    memory.decide("print", False)
    assert memory.is_faster("print") is False
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 2, "devices": {}}', '{"format": 1}', "\x00"],
)
def test_a_file_that_is_something_else_is_found_out_again(
    text: str, path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_text(text)
    memory = StepMemory("this CPU", path)
    assert memory.is_faster("print") is None
    assert "found out again" in caplog.text
    memory.keep("print", VERDICT)
    assert StepMemory("this CPU", path).is_faster("print") is True


@pytest.mark.parametrize(
    ("verdict", "logs"),
    [
        (None, None),
        ({}, "text"),
        ({**VERDICT._asdict(), "faster": "yes"}, [0.1, "text"]),
        ({**VERDICT._asdict(), "low_seconds": None}, [float("nan")]),
        ({**VERDICT._asdict(), "more": 1}, [1e9]),
        ({**VERDICT._asdict(), "when": float("inf")}, {"0": 1}),
    ],
)
def test_entries_that_make_no_sense_are_left_out(
    verdict: object, logs: object, path: pathlib.Path
) -> None:
    StepMemory("this CPU", path).keep("good", VERDICT)
    content = json.loads(path.read_text())
    content["devices"]["this CPU"]["verdicts"]["bad"] = verdict
    content["devices"]["this CPU"]["learned"] = {CELL: logs, "good": [0.1]}
    path.write_text(json.dumps(content))
    memory = StepMemory("this CPU", path)
    assert (memory.is_faster("good"), memory.is_faster("bad")) == (True, None)
    assert set(memory.learned.lessons) == {"good"}
    memory.keep("more", VERDICT)
    kept = json.loads(path.read_text())["devices"]["this CPU"]
    assert set(kept["verdicts"]) == {"good", "more"}


def test_where_nothing_can_be_written_the_process_remembers_and_says_so_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    memory = StepMemory("this CPU", tmp_path / "file" / FILE)
    memory.keep("print", VERDICT)
    memory.learn({CELL: [0.1] * 3})
    assert memory.is_faster("print") is True
    assert memory.learned.believed(CELL)
    assert caplog.text.count("AMP503") == 1


def test_without_a_folder_nothing_is_written() -> None:
    memory = StepMemory("this CPU", None)
    memory.keep("print", VERDICT)
    assert memory.is_faster("print") is True
