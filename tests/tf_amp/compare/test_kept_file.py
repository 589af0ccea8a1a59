"""Files of what was found out, which may be anybody's, or not to be had."""

from __future__ import annotations

import json
import os
import pathlib
import stat
import tempfile
import time

import pytest

from tests.forking import Child, run_forked
from tf_amp.checking.known import Outcomes
from tf_amp.compare.kept_file import KeptFile, is_number
from tf_amp.compare.verdicts import FILE, KeptVerdict, StepMemory

VERDICT = KeptVerdict("step", True, 2.0, 1.0, 1e9)
# A process that finds out something of each kind; root may write where others may not.
FINDS = """
import os, pathlib, sys
if os.geteuid() == 0 and {as_other}:
    os.setegid(65534)
    os.seteuid(65534)
from tf_amp.checking.known import Outcomes
from tf_amp.compare.verdicts import FILE, StepMemory, KeptVerdict
folder = pathlib.Path({folder!r})
for number in range(3):
    memory = StepMemory("this CPU", folder / FILE)
    memory.keep(f"{name}{{number}}", KeptVerdict("step", True, 2.0, 1.0, 1e9))
    memory.learn({{"cell": [0.1]}})
    Outcomes("here", folder / "kernels" / "here.json").add({{f"{name}{{number}}": ""}})
print(memory.is_faster("{name}2"))
"""


def finding(folder: pathlib.Path, name: str = "", *, as_other: bool = False) -> str:
    return FINDS.format(folder=str(folder), name=name, as_other=as_other)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cache" / FILE


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format": 1, "devices": []}',
        '{"format": 1, "devices": {"this CPU": 3}, "kernels": {}}',
        "\udcff",
    ],
    ids=["nested", "list", "other", "bytes"],
)
def test_a_file_of_any_content_is_read_with_one_warning_at_most(
    text: str, path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(text.encode(errors="surrogateescape"))
    for _ in range(2):
        memory = StepMemory("this CPU", path)
    assert memory.is_faster("print") is None
    is_such_a_file = "this CPU" in text
    assert caplog.text.count(str(path)) == (not is_such_a_file)
    memory.keep("print", VERDICT)
    assert StepMemory("this CPU", path).is_faster("print") is True


@pytest.mark.parametrize("number", ["1" + "0" * 400, "NaN", "-Infinity", "true", '"1"'])
def test_what_cannot_be_reckoned_with_is_no_number(
    number: str, path: pathlib.Path
) -> None:
    assert not is_number(json.loads(number))
    memory = StepMemory("this CPU", path)
    memory.keep("good", VERDICT)
    memory.keep("bad", VERDICT)
    text = path.read_text()
    before, _, after = text.rpartition("2.0")
    path.write_text(before + number + after)
    later = StepMemory("this CPU", path)
    assert (later.is_faster("good"), later.is_faster("bad")) == (True, None)


@pytest.mark.parametrize("fault", ["\x1b[2J", "two\nlines", 3, None, ["off"]])
def test_a_fault_that_is_no_line_of_text_is_left_out(
    fault: object, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "here.json"
    kernels = {"right": "", "odd": fault, "wrong": "off"}
    path.write_text(json.dumps({"format": 1, "machine": "here", "kernels": kernels}))
    known = Outcomes("here", path)
    assert "right" in known and "odd" not in known
    assert known.wrong == {"wrong": "off"}


def test_a_file_too_large_to_read_at_once_is_not_read(
    path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(2**40)
    begin = time.monotonic()
    assert KeptFile(path, "devices").read() == {}
    assert time.monotonic() - begin < 1.0
    assert caplog.text.count("is ignored") == 1


def test_what_is_no_file_is_neither_waited_for_nor_written(
    path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    memory = StepMemory("this CPU", path)
    memory.keep("print", VERDICT)
    assert memory.is_faster("print") is True
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_files_have_the_rights_that_the_user_gives_to_files(
    tmp_path: pathlib.Path,
) -> None:
    code = f"import os\nos.umask(0o027)\n{finding(tmp_path / 'cache')}"
    assert run_forked(code).lines() == ["True"]
    modes = {
        str(each.relative_to(tmp_path)): oct(each.stat().st_mode & 0o777)
        for each in sorted(tmp_path.rglob("*"))
    }
    assert modes == {
        "cache": "0o750",
        "cache/kernels": "0o750",
        "cache/kernels/here.json": "0o640",
        "cache/verdicts.json": "0o640",
    }


@pytest.mark.parametrize("mode", [0o555, 0o000], ids=["read-only", "closed"])
def test_a_folder_that_may_not_be_used_costs_a_line_per_process(mode: int) -> None:
    # Those of pytest are closed to others from above.
    with tempfile.TemporaryDirectory() as name:
        outer, folder = pathlib.Path(name), pathlib.Path(name, "cache")
        folder.mkdir()
        folder.chmod(mode)
        outer.chmod(0o755)
        done = run_forked(finding(folder, as_other=True))
        folder.chmod(0o755)
    assert done.lines() == ["True"]
    assert done.err.count("AMP503") == 1, done.err
    assert "remembered by this process alone" in done.err


def test_a_folder_where_nothing_is_lost_costs_no_line(tmp_path: pathlib.Path) -> None:
    assert run_forked(finding(tmp_path)).lines() == ["True"]
    program = f"""
import pathlib
from tf_amp.checking.known import Outcomes
from tf_amp.compare.verdicts import FILE, StepMemory
folder = pathlib.Path({str(tmp_path)!r})
print(StepMemory("this CPU", folder / FILE).is_faster("1"))
print("1" in Outcomes("here", folder / "kernels" / "here.json"))
"""
    for each in (tmp_path, tmp_path / "kernels"):
        each.chmod(0o500)
    done = run_forked(program)
    for each in (tmp_path, tmp_path / "kernels"):
        each.chmod(0o700)
    assert done.lines() == ["True", "True"] and "AMP503" not in done.err


def test_processes_that_share_a_folder_leave_whole_files_and_no_lines(
    tmp_path: pathlib.Path,
) -> None:
    # `make test-long` takes more.
    count = int(os.environ.get("SHARING_PROCESSES", "6"))
    outs = [(tmp_path / f"{i}.out", tmp_path / f"{i}.err") for i in range(count)]
    folder = tmp_path / "cache"
    children = [Child(finding(folder, f"p{i} "), {}, *outs[i]) for i in range(count)]
    assert [child.wait() for child in children] == [0] * count
    assert not [err for _, err in outs if "tf-amp" in err.read_text()]
    assert not [err for _, err in outs if "AMP503" in err.read_text()]
    memory = StepMemory("this CPU", folder / FILE)
    known = Outcomes("here", folder / "kernels" / "here.json")
    last = [f"p{i} 2" for i in range(count)]
    # Two that write at once may lose an entry, and no file.
    assert any(map(memory.is_faster, last)) and any(each in known for each in last)
    assert {each.name for each in folder.iterdir()} == {FILE, "kernels"}
