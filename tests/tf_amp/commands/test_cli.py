"""The command line: running scripts with settings, and what is said of its options."""

import argparse
import os
import subprocess
import sys

import pytest

from tests.command_lines import run_line
from tests.fresh_process import PROBE, run_interpreter
from tests.processes import ROOT, environment, sources
from tf_amp.commands import _shared, cli
from tf_amp.config.amp_config import (
    DTYPE,
    LOSS_SCALE,
    LOSS_SCALING_SWITCH,
    SWITCH,
    AmpConfig,
)
from tf_amp.config.amp_config import REWRITE_SWITCH as REWRITE
from tf_amp.errors import ConfigError
from tf_amp.report.files import check_writable
from tf_amp.runtime import autostart
from tf_amp.tools import running_scripts

COMMANDS = cli._commands()
SCRIPT = """
import os, sys
print(__name__, sys.argv, os.path.basename(__file__), "tensorflow" in sys.modules)
import neighbor
if sys.argv[1:] == ["fail"]:
    sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "neighbor.py").write_text("print('neighbor')")
    (scripts / "script.py").write_text(SCRIPT)
    (scripts / "train.py").write_text(
        PROBE + "print(dtype_of(product()), tf_amp.plans()[-1].opt_level)"
    )
    return tmp_path


def fresh_tf_amp_of(folder, *arguments):
    return run_interpreter(("-m", "tf_amp", *arguments), cwd=folder)


def test_a_script_runs_as_under_python(folder):
    command = ("run", "scripts/script.py", "--epochs", "3", "-v")
    done = fresh_tf_amp_of(folder, *command)
    plain = run_interpreter(command[1:], cwd=folder)
    assert plain.out.splitlines()[-1] == "neighbor"
    assert (done.out, done.code) == (plain.out, 0), done.err


def test_a_script_needs_no_run_and_its_exit_code_is_kept(folder):
    done = fresh_tf_amp_of(folder, "scripts/script.py", "fail")
    assert (done.code, "neighbor" in done.out) == (7, True)
    (folder / "explian").write_text("print('ran')")
    assert run_line("tf-amp explian", folder).out == "ran\n"


def test_a_module_runs_as_under_python(folder):
    done = fresh_tf_amp_of(folder / "scripts", "run", "-m", "script", "a")
    assert done.out.splitlines()[0] == (
        f"__main__ ['{folder}/scripts/script.py', 'a'] script.py False"
    )


def test_a_script_is_rewritten_with_the_options_given(folder):
    options = "--dtype float16 --opt-level o2 --verbose --log out scripts/train.py"
    done = run_line(f"tf-amp run {options}", folder, env={SWITCH: "0"})
    assert done.out.splitlines() == ["float16 O2"], done.err
    assert "float type attributes to float16 (O2" in done.err
    assert len(list((folder / "out").iterdir())) == 4


def test_run_takes_every_setting_of_enable(folder):
    (folder / "told.py").write_text(
        "from tf_amp.config.amp_config import AmpConfig\n"
        "c = AmpConfig.from_env()\n"
        "print(c.exclude, c.loss_scale, c.tune, c.fuse, c.verbose, c.strict, c.check,\n"
        "    c.memory)\n"
        "print({(e.verb, e.list_name, e.ops) for e in c.list_edits} == {\n"
        "    ('add', 'deny', ('Tanh', 'Exp')), ('add', 'allow', ('Mine',)),\n"
        "    ('remove', 'clear', ('Pad',))})\n"
    )
    options = """run --exclude ^head/ --exclude softmax --loss-scale 8 --tune off
        --fuse off --quiet --strict --check off --memory save --add deny=Tanh,Exp
        --add allow=Mine --remove clear=Pad told.py"""
    assert run_line(f"tf-amp {options}", folder).lines() == [
        "('^head/', 'softmax') StaticLossScale(value=8.0) off () False True False save",
        "True",
    ]


@pytest.mark.parametrize("switches", [{REWRITE: "0"}, {REWRITE: "off", SWITCH: "0"}])
def test_a_script_runs_whichever_switch_says_off(monkeypatch, switches):
    monkeypatch.setattr(autostart, "is_installed", lambda: True)
    for name in (SWITCH, REWRITE):
        monkeypatch.setenv(name, switches.get(name, ""))
    running_scripts.switch_on({})
    assert AmpConfig.from_env().enabled
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setenv(REWRITE, "0")
    with pytest.raises(ConfigError, match="contradict each other"):
        running_scripts.switch_on({})


@pytest.mark.parametrize(
    ("options", "said", "config"),
    [
        ({DTYPE: "float16"}, {SWITCH: "bfloat16"}, ("float16", None)),
        (
            {LOSS_SCALE: "none"},
            {SWITCH: "float16", LOSS_SCALING_SWITCH: "1"},
            ("float16", "none"),
        ),
    ],
)
def test_options_go_before_the_environment(monkeypatch, options, said, config):
    monkeypatch.setattr(autostart, "is_installed", lambda: True)
    for name in (SWITCH, REWRITE, LOSS_SCALING_SWITCH, *options):
        monkeypatch.setenv(name, said.get(name, ""))
    running_scripts.switch_on(options)
    found = AmpConfig.from_env()
    assert found.enabled and (found.dtype, found.to_env().get(LOSS_SCALE)) == config


def test_without_tensorflow_there_is_one_error(folder):
    (folder / "tensorflow.py").write_text("raise ModuleNotFoundError(name=__name__)")
    program = """
import keras_callbacks
import tf_amp
from tf_amp.commands import cli
for command in ("verify", "ranges", "run"):
    print(cli.main([command, "scripts/train.py"]))
for attempt in (
    lambda: tf_amp.enable(),
    lambda: tf_amp.loss_scale_state(),
    lambda: tf_amp.verify,
    lambda: tf_amp.block_sparse.BlockSparseDense,
    *(lambda name=name: getattr(keras_callbacks, name)
      for name in keras_callbacks.__all__),
):
    try:
        attempt()
    except tf_amp.TensorFlowMissingError as error:
        print(error.remedy[:11])
"""
    env = {"PYTHONPATH": f"{folder}:{ROOT}"}
    done = run_interpreter(("-c", program), cwd=folder, env=env)
    assert done.lines() == ["2"] * 3 + ["pip install"] * 10
    assert done.err.count("TensorFlow cannot be imported") == 3
    assert done.err.count("\n") == 3


@pytest.mark.parametrize(
    "command",
    [
        "verify model --tolerance nan",
        "verify model --device-profile v1000",
        "audit model --device-profile v1000",
        "explain script.py --measure",
    ],
)
def test_a_wrong_command_line_is_refused_before_tensorflow_is_imported(folder, command):
    program = f"""
import sys
from tf_amp.commands import cli
try:
    print(cli.main({command.split()!r}))
except SystemExit as ended:
    print(ended.code)
print("tensorflow" in sys.modules)
"""
    cwd = folder / "scripts"
    (cwd / "model").mkdir()
    done = run_interpreter(("-c", program), cwd=cwd)
    assert done.lines() == ["2", "False"], done.err


def actions_of(parser):
    """Yield every option and argument of a command and the commands below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from actions_of(each)
        else:
            yield action


def test_the_help_of_every_command_explains_every_option():
    actions = list(actions_of(cli._parser()))
    assert len(actions) > 60
    assert not [action.dest for action in actions if not action.help]


def test_the_page_has_every_code_of_every_command():
    lines = (ROOT / "docs/exit_codes.md").read_text().splitlines()
    table = [line.split("|")[1:-1] for line in lines if line.startswith("| ")]
    cells = [[cell.strip(" `") for cell in row] for row in table]
    rows = {first: rest for first, *rest in cells}
    for code, meaning in _shared.MEANINGS.items():
        assert rows.pop(str(code)) == [meaning]
    codes = (_shared.DONE, _shared.FAILED, _shared.NOTHING)
    for name, command in COMMANDS.items():
        told = dict(zip(codes, rows.pop(name), strict=False))
        assert {code: what for code, what in told.items() if what} == command.EXITS
    assert rows == {"code": ["meaning"], "command": ["0", "1", "3"]}


@pytest.mark.parametrize(
    ("line", "code"),
    [("doctor --all", _shared.INTERRUPTED), ("--help", 0), ("verify --help", 0)],
)
def test_a_command_whose_output_nobody_reads_ends_without_a_traceback(line, code):
    reading, writing = os.pipe()
    os.close(reading)
    env = {**environment(sources()), "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "-m", "tf_amp", *line.split()],
        env=env,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


def test_a_pipe_can_be_written_and_a_link_where_it_leads(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "absent" / "file")
    check_writable("--out", tmp_path / "pipe")
    with pytest.raises(ConfigError, match="--out"):
        check_writable("--out", tmp_path / "link")
