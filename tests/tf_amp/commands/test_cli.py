"""The command line: running scripts, and what it says of mistakes."""

import argparse
import inspect

import pytest

import tf_amp
from tests.forking import run_forked, run_forked_command
from tests.fresh_process import PROBE, run_interpreter
from tests.processes import ROOT
from tf_amp.commands import cli, run
from tf_amp.commands._options import Options
from tf_amp.config.amp_config import (
    DTYPE,
    LOSS_SCALE,
    LOSS_SCALING_SWITCH,
    SWITCH,
    AmpConfig,
)
from tf_amp.config.amp_config import REWRITE_SWITCH as REWRITE
from tf_amp.errors import ConfigError
from tf_amp.runtime import autostart
from tf_amp.tools import running_scripts

SCRIPT = """
import os, sys
print(__name__, sys.argv, os.path.basename(__file__), "tensorflow" in sys.modules)
import neighbor
if sys.argv[1:] == ["fail"]:
    sys.exit(7)
"""

WRONG = """
import tf_amp
def build():
    tf_amp.enable(dtype="float8")
build()
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


def tf_amp_of(folder, *arguments, env=None):
    return run_forked_command(("-m", "tf_amp", *arguments), cwd=folder, env=env)


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
    assert done.code == 7
    assert "neighbor" in done.out


@pytest.mark.parametrize("command", [("run",), ("run", "-m")])
def test_an_error_of_ours_that_a_script_raises_is_the_scripts_own(folder, command):
    (folder / "wrong.py").write_text(WRONG)
    script = "wrong" if "-m" in command else "wrong.py"
    done = tf_amp_of(folder, *command, script)
    assert done.code == 1
    assert "in build" in done.err and "received 'float8'" in done.err


@pytest.mark.parametrize("command", ["run", "audit --device v100"])
def test_a_wrong_setting_that_a_script_comes_upon_is_not_the_scripts(folder, command):
    (folder / "traced.py").write_text("import tensorflow as tf; tf.function(abs)(1.0)")
    name, *options = command.split()
    env = {"TF_AMP_DEVICE_PROFILE": "v1000"}
    done = tf_amp_of(folder, name, "traced.py", *options, env=env)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    named = "tf-amp: device_profile (TF_AMP_DEVICE_PROFILE): unknown device profile"
    assert f"{named} 'v1000'" in done.err


def test_an_op_that_does_not_exist_is_said_of_the_option(folder):
    (folder / "traced.py").write_text("import tensorflow as tf; tf.function(abs)(1.0)")
    done = tf_amp_of(folder, "run", "--add", "clear=Rellu", "traced.py")
    assert done.code == 2, done.err
    assert done.err.startswith("tf-amp: --add: received 'Rellu' for the clear list")
    assert done.err.count("\n") == 1


def test_a_module_runs_as_under_python(folder):
    done = fresh_tf_amp_of(folder / "scripts", "run", "-m", "script", "a")
    assert done.out.splitlines()[0] == (
        f"__main__ ['{folder}/scripts/script.py', 'a'] script.py False"
    )
    missing = fresh_tf_amp_of(folder, "run", "-m", "no.such.module")
    assert missing.code == 2
    assert "no module named no.such.module" in missing.err


def test_a_script_is_rewritten_with_the_options_given(folder):
    done = tf_amp_of(
        folder,
        *(
            "run",
            "--dtype",
            "float16",
            "--opt-level",
            "o2",
            "--verbose",
            "--log",
            "out",
        ),
        "scripts/train.py",
        env={SWITCH: "0"},
    )
    assert done.out.splitlines() == ["float16 O2"], done.err
    assert "float type attributes to float16 (O2" in done.err
    assert len(list((folder / "out").iterdir())) == 4


def test_mistakes_are_said_in_one_line_with_exit_code_2(folder):
    for arguments, env, part in (
        (("run", "nowhere.py"), {}, "nowhere.py"),
        (("run", "--opt-level", "O7", "scripts/script.py"), {}, "O7"),
        (("scripts/script.py",), {"TF_AMP_OPTLEVEL": "O2"}, "TF_AMP_OPT_LEVEL"),
        (("scripts/script.py",), {SWITCH: "yes"}, "allowed are"),
        (("explain", "nowhere"), {}, "no such SavedModel or script"),
        (("calibrate", "--seconds", "soon"), {}, "--seconds"),
        (("",), {}, "received an empty text where a script's name should be"),
        (("scripts",), {}, "scripts is a folder without a __main__.py"),
        ((), {}, "required: COMMAND"),
        (("run",), {}, "error: the following arguments are required: SCRIPT"),
        (("exlpain", "model"), {}, "'exlpain' is no command, nor a script; did you"),
        (("exlpain", "model"), {}, "did you mean explain?"),
    ):
        done = tf_amp_of(folder, *arguments, env=env)
        assert done.code == 2, done.err
        assert part in done.err.splitlines()[-1]
        assert "Traceback" not in done.err
        assert done.out == ""


@pytest.mark.parametrize("seconds", ["nan", "inf", "-5", "0", "1e300"])
def test_a_calibration_ends(seconds, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["calibrate", "--seconds", seconds])
    assert caught.value.code == 2
    assert f"received {seconds!r}; wanted are seconds" in capsys.readouterr().err


@pytest.mark.parametrize("switches", [{REWRITE: "0"}, {REWRITE: "off", SWITCH: "0"}])
def test_a_script_runs_whichever_switch_says_off(monkeypatch, switches):
    monkeypatch.setattr(autostart, "is_installed", lambda: True)
    for name in (SWITCH, REWRITE):
        monkeypatch.setenv(name, switches.get(name, ""))
    running_scripts.switch_on({})
    assert AmpConfig.from_env().enabled


def test_two_switches_that_contradict_each_other_are_not_fixed(monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setenv(REWRITE, "0")
    with pytest.raises(ConfigError, match="contradict each other"):
        running_scripts.switch_on({})


@pytest.mark.parametrize(
    ("given", "said", "found"),
    [
        ({DTYPE: "float16"}, {SWITCH: "bfloat16"}, ("float16", None)),
        (
            {LOSS_SCALE: "none"},
            {SWITCH: "float16", LOSS_SCALING_SWITCH: "1"},
            ("float16", "none"),
        ),
    ],
)
def test_what_is_given_goes_before_the_environment(monkeypatch, given, said, found):
    monkeypatch.setattr(autostart, "is_installed", lambda: True)
    for name in (SWITCH, REWRITE, LOSS_SCALING_SWITCH, *given):
        monkeypatch.setenv(name, said.get(name, ""))
    running_scripts.switch_on(given)
    config = AmpConfig.from_env()
    assert config.enabled and (config.dtype, config.to_env().get(LOSS_SCALE)) == found


def test_without_tensorflow_there_is_one_error(folder):
    (folder / "tensorflow.py").write_text("raise ModuleNotFoundError(name=__name__)")
    program = """
import keras_callbacks
import tf_amp
from tf_amp.commands import cli
for command in ("verify", "ranges", "run"):
    print(cli.main([command, "scripts/train.py"]))
for attempt in (
    tf_amp.enable,
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


def test_version_and_help_are_printed(capsys):
    for option, part in (("--version", tf_amp.__version__), ("--help", "calibrate")):
        with pytest.raises(SystemExit) as caught:
            cli.main([option])
        assert caught.value.code == 0
        assert part in capsys.readouterr().out


def options_of(parser):
    """Return every option and argument of a command and the commands below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options_of(each)
        else:
            yield action


def test_the_help_of_every_command_explains_every_option():
    options = list(options_of(cli._parser()))
    assert len(options) > 60
    assert not [option.dest for option in options if not option.help]


def test_the_plan_of_a_saved_model_is_printed(folder):
    program = """
import tensorflow as tf

class Dense(tf.Module):
    def __init__(self):
        self.kernel = tf.Variable(tf.ones([2048, 2048]))

    @tf.function(input_signature=[tf.TensorSpec([2048, 2048], name="x")])
    def serve(self, x):
        return tf.nn.relu(x @ self.kernel)

dense = Dense()
tf.saved_model.save(dense, "model", signatures={"serve": dense.serve})
"""
    assert run_forked(program, cwd=folder).code == 0
    env = {"TF_AMP_DEVICE_PROFILE": "v100"}
    done = tf_amp_of(folder, "explain", "model", "--top", "5", env=env)
    assert done.code == 0, done.err
    assert "to float16 (O1, v100)" in done.out.splitlines()[0]
    assert "MatMul" in done.out
    wrong = tf_amp_of(folder, "explain", "model", "--signature", "predict")
    assert wrong.code == 2
    assert "no signature 'predict'; it has serve" in wrong.err


def test_run_takes_every_setting_of_enable(folder):
    (folder / "told.py").write_text(
        "from tf_amp.config.amp_config import AmpConfig\n"
        "c = AmpConfig.from_env()\n"
        "print(c.exclude, c.loss_scale, c.tune, c.fuse, c.verbose)\n"
        "print([(e.verb, e.list_name, e.ops) for e in c.list_edits])\n"
    )
    options = """run --exclude ^head/ --exclude softmax --loss-scale 8 --tune off
        --fuse off --quiet --add deny=Tanh,Exp --add allow=Mine --remove clear=Pad
        told.py"""
    done = tf_amp_of(folder, *options.split())
    first, second = done.lines()
    assert first == ("('^head/', 'softmax') StaticLossScale(value=8.0) off () False"), (
        done.err
    )
    edits = {("add", "deny", ("Tanh", "Exp")), ("add", "allow", ("Mine",))}
    assert {tuple(each) for each in eval(second)} == {
        *edits,
        ("remove", "clear", ("Pad",)),
    }


def test_settings_of_enable_are_options_of_run():
    settings = set(inspect.signature(tf_amp.enable).parameters)
    parser = argparse.ArgumentParser()
    run.add_options(Options(parser))
    names = {
        "lists": "--add",
        "log_dir": "--log",
        "verbose": "--quiet",
    }
    for setting in settings:
        option = names.get(setting, f"--{setting.replace('_', '-')}")
        assert option in parser.format_help(), setting


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--opt-level O7", "received 'O7'; allowed are O0, O1, O2, O3."),
        ("--device-profile v1000", "unknown device profile 'v1000'; did you mean"),
        ("--exclude (", "'(' is no regular expression"),
        ("--add deny", "received 'deny'; wanted is LIST=OP,OP"),
        (
            "--remove never=Exp",
            "received 'never=Exp'; wanted is LIST=OP,OP, where LIST",
        ),
        ("--loss-scale often", "received 'often'; allowed are a number"),
        ("--tune never", "received 'never'; allowed are on and off."),
        ("--fuse no", "received 'no'; allowed are on, off and"),
        ("--ranges none.json", "there is no file none.json."),
    ],
)
@pytest.mark.parametrize("command", ["run", "verify", "convert", "report", "audit"])
def test_a_wrong_option_is_refused_by_its_name(given, words, command, capsys):
    option = given.split()[0]
    parser = argparse.ArgumentParser()
    cli._commands()[command].add_options(Options(parser))
    if option not in parser._option_string_actions:
        return
    with pytest.raises(SystemExit) as ended:
        cli.main([command, *given.split(), "nowhere.py"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert f"error: argument {option}: {words}" in last and "TF_AMP" not in last


def test_edits_of_lists_that_contradict_each_other_are_named_as_typed(capsys):
    edits = ("--add", "deny=Exp", "--add", "allow=Exp")
    assert cli.main(["run", *edits, "nowhere.py"]) == 2
    assert "--add adds Exp to the deny list and --add" in capsys.readouterr().err


def test_a_word_that_is_a_script_is_run_though_a_command_is_near(folder):
    (folder / "explian").write_text("print('ran')")
    assert tf_amp_of(folder, "explian").out == "ran\n"


@pytest.mark.parametrize(
    "command",
    [
        "verify model --tolerance -1",
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


@pytest.mark.parametrize("name", ["v1000", "nothing-like-it"])
def test_a_wrong_profile_lists_each_once(name, capsys):
    with pytest.raises(SystemExit):
        cli.main(["audit", "model", "--device-profile", name])
    said = capsys.readouterr().err
    assert said.count("a100") == said.count("cpu-generic") == 1
