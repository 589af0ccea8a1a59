"""An exit code means the same in every command, and its help and a page say what."""

import pytest

from tests.forking import run_forked_command
from tests.processes import ROOT
from tf_amp.commands import cli
from tf_amp.commands._results import (
    DONE,
    FAILED,
    MEANINGS,
    NOTHING,
    REFUSED,
)

COMMANDS = cli._commands()
OF_SCRIPTS = ("explain", "verify", "ranges", "report", "audit --device-profile t4")


def rows_of_page():
    lines = (ROOT / "docs/exit_codes.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [[cell.strip(" `|") for cell in row] for row in rows]


def test_the_page_has_every_code_of_every_command():
    rows = {first: rest for first, *rest in rows_of_page()}
    for code, meaning in MEANINGS.items():
        assert rows.pop(str(code)) == [meaning]
    for name, command in COMMANDS.items():
        told = dict(zip((DONE, FAILED, NOTHING), rows.pop(name), strict=False))
        assert {code: what for code, what in told.items() if what} == command.EXITS
    assert rows == {"code": ["meaning"], "command": ["0", "1", "3"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_its_codes(name, capsys):
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for code, meaning in COMMANDS[name].EXITS.items():
        assert f"{code} {meaning}" in said
    assert f"{REFUSED} a wrong command line, setting or file" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command_line_is_2(name):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--no-such-option"])
    assert ended.value.code == REFUSED


@pytest.mark.parametrize(
    ("command", "code"),
    [*((each, NOTHING) for each in OF_SCRIPTS), ("bench", NOTHING), ("run", DONE)],
)
def test_a_script_without_graphs(tmp_path, command, code):
    (tmp_path / "idle.py").write_text("print('idle')")
    name, *options = command.split()
    briefly = ("--rounds", "1", "--methods", "float32") if name == "bench" else ()
    given = ("-m", "tf_amp", name, *options, *briefly, "idle.py")
    done = run_forked_command(given, cwd=tmp_path)
    assert done.code == code, done.err
    assert {each.name for each in tmp_path.iterdir()} == {"idle.py"}
    # Neither a table without rows.
    assert done.out == ("" if name == "bench" else "idle\n")
    assert done.err.startswith("tf-amp: ") or name == "run"


@pytest.mark.parametrize(
    ("command", "code"),
    [*((each, FAILED) for each in OF_SCRIPTS), ("bench", FAILED), ("run", 3)],
)
def test_a_script_that_fails(tmp_path, command, code):
    (tmp_path / "failing.py").write_text("raise SystemExit(3)")
    name, *options = command.split()
    briefly = ("--rounds", "1", "--methods", "float32") if name == "bench" else ()
    given = ("-m", "tf_amp", name, *options, *briefly, "failing.py")
    done = run_forked_command(given, cwd=tmp_path)
    assert done.code == code, done.err
    said = "exit status 3" if name == "bench" else "ended with exit code 3"
    assert name == "run" or said in done.err
