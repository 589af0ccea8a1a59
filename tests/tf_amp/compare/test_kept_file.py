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
from tf_amp.compare import known_kernels as known
from tf_amp.compare.kept_file import KeptFile
from tf_amp.compare.known_kernels import Outcomes
from tf_amp.compare.verdicts import FILE, KeptVerdict, StepMemory

VERDICT = KeptVerdict("step", True, 2.0, 1.0, 1e9)
CELL = "matmul 256x256x256 bfloat16 (cpu-generic)"


class Verdicts:
    """What steps have shown, by the name of a graph."""

    def __init__(self, path: pathlib.Path | None, machine: str = "here") -> None:
        self.memory = StepMemory(machine, path)

    def add(self, name: str) -> None:
        self.memory.keep(name, VERDICT)

    def has(self, name: str) -> bool:
        return self.memory.is_faster(name) is True


class Kernels:
    """How kernels came out, by their key."""

    def __init__(self, path: pathlib.Path | None, machine: str = "here") -> None:
        self.outcomes = Outcomes(machine, path)

    def add(self, name: str) -> None:
        self.outcomes.add({name: "off"})

    def has(self, name: str) -> bool:
        return self.outcomes.fault(name) == "off" and name in self.outcomes


Kind = type[Verdicts] | type[Kernels]
kinds = pytest.mark.parametrize("kind", [Verdicts, Kernels])


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cache" / FILE


@kinds
def test_what_processes_find_at_once_the_next_one_knows(
    kind: Kind, path: pathlib.Path
) -> None:
    first, second = kind(path), kind(path)
    first.add("one")
    second.add("other")
    later = kind(path)
    assert later.has("one") and later.has("other") and not later.has("third")
    assert not kind(path, "elsewhere").has("one")


def test_lessons_of_processes_and_devices_stay_side_by_side(path: pathlib.Path) -> None:
    one, other, third = (StepMemory(name, path) for name in ("a", "a", "b"))
    third.learn({CELL: [0.5]})
    one.learn({CELL: [0.1]})
    other.learn({CELL: [0.2, 0.15]})
    assert StepMemory("a", path).learned.believed(CELL).logs == (0.1, 0.2, 0.15)
    assert StepMemory("b", path).learned.lessons[CELL].logs == (0.5,)


@kinds
@pytest.mark.parametrize("folder", [None, "in the way", "to come"])
def test_where_nothing_is_written_the_process_remembers(
    kind: Kind, folder: str | None, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "in the way").write_text("a file")
    kept = kind(folder and tmp_path / folder / FILE)
    if kind is Verdicts and folder == "to come":
        # What was decided without being measured is of this process alone.
        kept.memory.decide("name", True)
        assert not (tmp_path / folder).exists()
    else:
        kept.add("name")
    assert kept.has("name")


def test_what_ships_with_the_package_is_of_named_machines() -> None:
    files = sorted(pathlib.Path(known.__file__).parent.glob("shipped/*.json"))
    assert files
    for file in files:
        fields = json.loads(file.read_text())
        assert known.shipped(fields["machine"]) == fields["kernels"] != {}
        assert not known.shipped(f"not {fields['machine']}")


SUCH_A_FILE = '{"format": 1, "devices": {"here": 3}, "machine": "here", "kernels": {}}'


@kinds
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "\x00", "\udcff", '{"format": 1}'),
        '{"format": 2, "devices": {}, "kernels": {}}',
        '{"format": 1, "devices": [], "kernels": []}',
        pytest.param("[" * 100_000, id="nested"),
        SUCH_A_FILE,
    ],
)
def test_a_file_of_any_content_is_replaced_with_one_warning_at_most(
    kind: Kind, text: str, path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(text.encode(errors="surrogateescape"))
    for _ in range(2):
        kept = kind(path)
    assert not kept.has("name")
    assert caplog.text.count("is ignored, and measured again") == (text != SUCH_A_FILE)
    kept.add("name")
    assert kind(path).has("name")


@pytest.mark.parametrize(
    ("verdict", "logs"),
    [
        (None, None),
        ({}, "text"),
        ({"faster": "yes"}, [0.1, "text"]),
        ({"low_seconds": None}, [float("nan")]),
        ({"more": 1}, [1e9]),
        ({"when": float("inf")}, {"0": 1}),
        *(
            ({"float32_seconds": number}, [number])
            for number in (10**400, float("nan"), -float("inf"), True, "1")
        ),
    ],
)
def test_entries_that_make_no_sense_are_left_out(
    verdict: object, logs: object, path: pathlib.Path
) -> None:
    StepMemory("here", path).keep("good", VERDICT)
    content = json.loads(path.read_text())
    bad = {**VERDICT._asdict(), **verdict} if verdict else verdict
    content["devices"]["here"]["verdicts"]["bad"] = bad
    content["devices"]["here"]["learned"] = {CELL: logs, "good": [0.1]}
    path.write_text(json.dumps(content))
    memory = StepMemory("here", path)
    assert (memory.is_faster("good"), memory.is_faster("bad")) == (True, None)
    assert set(memory.learned.lessons) == {"good"}
    memory.keep("more", VERDICT)
    kept = json.loads(path.read_text())["devices"]["here"]
    assert set(kept["verdicts"]) == {"good", "more"}


@pytest.mark.parametrize("fault", ["\x1b[2J", "two\nlines", 3, None, ["off"]])
def test_a_fault_that_is_no_line_of_text_is_left_out(
    fault: object, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "here.json"
    kernels = {"right": "", "odd": fault, "wrong": "off"}
    path.write_text(json.dumps({"format": 1, "machine": "here", "kernels": kernels}))
    outcomes = Outcomes("here", path)
    assert "right" in outcomes and "odd" not in outcomes
    assert outcomes.wrong == {"wrong": "off"} and outcomes.fault("right") == ""


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


def test_what_is_no_file_is_neither_waited_for_nor_written(path: pathlib.Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    kept = Verdicts(path)
    kept.add("name")
    assert kept.has("name") and stat.S_ISFIFO(path.stat().st_mode)


# A process that finds out something of each kind; root may write where others may not.
FINDS = """
import os, pathlib, sys
if os.geteuid() == 0 and {as_other}:
    os.setegid(65534)
    os.seteuid(65534)
from tf_amp.compare.known_kernels import Outcomes
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
from tf_amp.compare.known_kernels import Outcomes
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
    outcomes = Outcomes("here", folder / "kernels" / "here.json")
    last = [f"p{i} 2" for i in range(count)]
    # Two that write at once may lose an entry, and no file.
    assert any(map(memory.is_faster, last)) and any(each in outcomes for each in last)
    assert {each.name for each in folder.iterdir()} == {FILE, "kernels"}
