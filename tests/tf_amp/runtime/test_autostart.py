"""The autostart line: cheap, silent, and gone unless a switch is on.

Most tests run it before a stand-in for TensorFlow, two small modules with the classes
that it waits for, and a stand-in for `tf_amp.runtime.autostart` that records what
it is given.
"""

from __future__ import annotations

import pathlib
import zipfile

import pytest

from tests.installations import Environment, built_wheel
from tests.processes import Outcome, run, run_python
from tf_amp.config import amp_config
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.runtime import _autostart_hooks as hooks

FILES = {
    "tensorflow/__init__.py": "",
    "tensorflow/python/__init__.py": "",
    "tensorflow/python/framework/__init__.py": "",
    "tensorflow/python/framework/func_graph.py": '''
class FuncGraph:
    """A graph."""
    def __init__(self, name, *, capture=False):
        """Make it."""
        self.made = (name, capture)
class Inner(FuncGraph):
    pass
''',
    "tensorflow/python/client/__init__.py": "",
    "tensorflow/python/client/session.py": """
class BaseSession:
    def __init__(self, target=""):
        self.made = target
""",
    "tensorflow/python/training/__init__.py": "",
    "tensorflow/python/training/server_lib.py": """
class Server:
    def __init__(self):
        self.start()
    def start(self):
        from tf_amp.runtime.autostart import started
        self.noticed = started == [self]
""",
    "tensorflow/python/ops/__init__.py": "",
    "tensorflow/python/ops/resource_variable_ops.py": """
class ResourceVariable:
    def __init__(self, value):
        self.value = value
""",
    "keras/__init__.py": "",
    "keras/src/__init__.py": "",
    "keras/src/trainers/__init__.py": "",
    "keras/src/trainers/trainer.py": """
class Trainer:
    def __init__(self):
        self.made = True
""",
    "tf_amp/__init__.py": "",
    "tf_amp/runtime/autostart.py": "started, variables, models = [], [], []\n"
    "names = []\n"
    "start, note_variable = started.append, variables.append\n"
    "note_model, note_names = models.append, names.append\n",
}
IMPORT_BOTH = """
import os, sys
from tensorflow.python.framework.func_graph import FuncGraph, Inner
from tensorflow.python.client.session import BaseSession
switch = "TF_ENABLE_AUTO_MIXED_PRECISION"
"""


@pytest.fixture(scope="module")
def line() -> str:
    """Return the line as it is in the wheel."""
    return zipfile.ZipFile(built_wheel()).read("tf_amp_autostart.pth").decode()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, line: str) -> Environment:
    """Return an environment that has the line, and the stand-ins."""
    folder = tmp_path_factory.mktemp("stand-ins") / "venv"
    environment = Environment(folder, with_tensorflow=False)
    (environment.packages / "tf_amp_autostart.pth").write_text(line)
    for name, text in FILES.items():
        path = environment.packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return environment


def test_the_line_is_one_line_that_imports_nothing_but_sys(line: str) -> None:
    assert line.startswith("import sys; ")
    assert line.count("\n") == 1
    code = "import sys; before = set(sys.modules)\n{}print(set(sys.modules) - before)"
    assert run_python(code.format(line), options=["-S"]).lines() == ["set()"]


def test_a_start_with_the_line_takes_under_two_milliseconds_more(line: str) -> None:
    code = f"""
import time
line = {line!r}
begin = time.perf_counter()
exec(line)
print(time.perf_counter() - begin)
"""
    # The least of several, since other processes only ever add.
    seconds = [run_python(code, options=["-S"]).lines()[0] for _ in range(10)]
    assert min(map(float, seconds)) < 0.002


# What a program does, the variables it is given, and what it prints.
OF_PROGRAMS = {
    "a traceback through the line names its file": (
        """
import traceback
try:
    BaseSession(1, 2)
except TypeError as error:
    print(traceback.extract_tb(error.__traceback__)[-1].filename)
""",
        ["<tf_amp_autostart.pth>"],
    ),
    "nothing is imported while the switch is off": (
        """
for value in ("", "0", "false", "OFF", " Off "):
    os.environ[switch] = value
    FuncGraph("f"); BaseSession()
print("tf_amp" in sys.modules)
""",
        ["False"],
    ),
    "names of settings import nothing while the switch is off": (
        """
for name in ("TF_AMP_CACHE", switch + "_LOSS_SCALING", "TF_XLA_FLAGS", "PRECISION",
             "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL"):
    os.environ[name] = "1"
FuncGraph("f")
print("tf_amp" in sys.modules)
""",
        ["False"],
    ),
    "names that look like settings are noted once while the switch is off": (
        """
os.environ.update(TF_AMP_LEVLE="O2", TF_ENABLE_AUTO_MXED_PRECISION="1")
for _ in range(2):
    FuncGraph("f")
print(sys.modules["tf_amp.runtime.autostart"].names)
""",
        ["[['TF_AMP_LEVLE', 'TF_ENABLE_AUTO_MXED_PRECISION']]"],
    ),
    "it starts with the first graph after the switch is on": (
        """
for make in (lambda: FuncGraph("f"), lambda: Inner("f"), BaseSession):
    os.environ[switch] = "0"
    make()
    os.environ[switch] = "1"
    first = make()
    print(sys.modules["tf_amp.runtime.autostart"].started.pop() is first)
print(sys.modules["tf_amp.runtime.autostart"].started)
""",
        ["True", "True", "True", "[]"],
    ),
    "the switch for the rewrite alone starts it too": (
        """
os.environ[switch + "_GRAPH_REWRITE"] = "1"
FuncGraph("f")
print("tf_amp" in sys.modules)
""",
        ["True"],
    ),
    "variables and models are noticed without a start": (
        """
from keras.src.trainers.trainer import Trainer
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
os.environ[switch] = "1"
variable, model = ResourceVariable(2), Trainer()
from tf_amp.runtime import autostart
print(autostart.variables == [variable], autostart.models == [model], variable.value)
print(autostart.started)
""",
        ["True True 2", "[]"],
    ),
    "a server is noticed before it starts": (
        """
from tensorflow.python.training.server_lib import Server
os.environ[switch] = "1"
print(Server().noticed)
""",
        ["True"],
    ),
    "the wrapped classes look as before": (
        """
import inspect
print(inspect.signature(FuncGraph), FuncGraph.__init__.__doc__)
print(FuncGraph.__init__.__qualname__, FuncGraph.__init__.__module__)
print(FuncGraph("f", capture=True).made, BaseSession(target="t").made)
print(type(sys.modules[FuncGraph.__module__].__spec__.loader).__name__)
try:
    FuncGraph()
except TypeError as error:
    print("name" in str(error))
""",
        [
            "(name, *, capture=False) Make it.",
            "FuncGraph.__init__ tensorflow.python.framework.func_graph",
            "('f', True) t",
            "SourceFileLoader",
            "True",
        ],
    ),
}


@pytest.mark.parametrize("name", OF_PROGRAMS)
def test_the_line_does_what_it_is_for_and_no_more(
    started: Environment, name: str
) -> None:
    program, printed = OF_PROGRAMS[name]
    assert started.run(f"{IMPORT_BOTH}{program}") == printed


def test_the_line_knows_the_names_of_all_settings() -> None:
    known = {*amp_config.SWITCHES, *amp_config.OWN_NAMES, amp_config.BENCH_BATCH}
    assert {*hooks.SWITCHES, *hooks.SETTINGS} == known
    assert hooks.LISTS == LIST_PREFIX


def test_a_line_that_is_installed_twice_starts_once(
    started: Environment, line: str
) -> None:
    begun = "sys.modules['tf_amp.runtime.autostart'].started"
    code = f"{line}{IMPORT_BOTH}FuncGraph('f'); print(len({begun}))"
    assert started.run(code, TF_ENABLE_AUTO_MIXED_PRECISION="1") == ["1"]


def test_without_tensorflow_the_import_error_is_pythons_own(
    tmp_path: pathlib.Path, line: str
) -> None:
    environment = Environment(tmp_path / "venv", with_tensorflow=False)
    (environment.packages / "tf_amp_autostart.pth").write_text(line)
    code = """
import importlib.util
try:
    import tensorflow.python.framework.func_graph
except ModuleNotFoundError as error:
    print(error, error.__cause__, error.__context__)
"""
    env = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
    assert environment.run(code, **env) == ["No module named 'tensorflow' None None"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the package and the real TensorFlow."""
    environment = Environment(tmp_path_factory.mktemp("real") / "venv")
    environment.pip("install", "--no-deps", "--no-index", str(built_wheel()))
    return environment


COMPUTES = """
import tensorflow as tf
tf.function(lambda x: x + 1)(1.0)
print("computed")
"""


@pytest.mark.parametrize(
    ("switch", "meant"),
    [
        ("1", {"TF_AMP_LEVLE": "TF_AMP_OPT_LEVEL"}),
        (
            "",
            {
                "TF_ENABLE_AUTO_MXED_PRECISION": "TF_ENABLE_AUTO_MIXED_PRECISION",
                "TF_AUTO_MIXED_PRECISION": "TF_ENABLE_AUTO_MIXED_PRECISION",
            },
        ),
    ],
)
def test_a_program_is_told_of_variables_that_are_misspelt_and_goes_on(
    installed: Environment, switch: str, meant: dict[str, str]
) -> None:
    def run_with(**env: str) -> Outcome:
        misspelt = dict.fromkeys(meant, "1")
        env = {**misspelt, "TF_ENABLE_AUTO_MIXED_PRECISION": switch, **env}
        return run_python(COMPUTES, python=installed.python, env=env)

    told = run_with()
    assert told.lines() == ["computed"]
    for name, near in meant.items():
        said = f"tf-amp: {name} is no setting, and does nothing; did you mean {near}?"
        assert told.err.count(f"{said} (AMP112)\n") == 1
    assert "AMP112" not in run_with(TF_AMP_VERBOSE="0").err


@pytest.mark.parametrize("command", [(), ("-m", "tf_amp", "run")])
def test_a_bad_value_ends_a_program_with_the_code_of_a_refused_one(
    installed: Environment, tmp_path: pathlib.Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "computes.py"
    path.write_text(COMPUTES)
    env = {"TF_ENABLE_AUTO_MIXED_PRECISION": "yes"}
    done = run([str(installed.python), *command, str(path)], env=env, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    said = "TF_ENABLE_AUTO_MIXED_PRECISION: received 'yes'; allowed are 1, true"
    last = done.err.splitlines()[-1]
    if command:
        assert last.startswith(f"tf-amp: {said}")
    else:
        assert last.startswith(f"tf-amp: the program ends here: {said}")
        assert last.endswith(" (AMP114)")


# The switch is off, then bad, then on, and each kind of program runs in turn.
PROGRAMS = """
import os, sys
import keras, tf_keras, tempfile
import tensorflow as tf
class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((256, 256))])
    def __call__(self, x):
        for _ in range(3):
            x = tf.nn.relu(tf.matmul(x, x))
        return x
folder = tempfile.mkdtemp()
tf.saved_model.save(Model(), folder)
for value in ("", "0", "False", "OFF"):
    os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = value
    print(float(tf.function(lambda x: tf.matmul(x, x))(tf.ones((2, 2)))[0, 0]))
print([name for name in sys.modules if name.startswith(("tf_amp", "grappler_pass"))])

os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "bfloat17"
for _ in range(2):
    try:
        tf.function(lambda x: x + 1)(1.0)
    except Exception as error:
        text = str(error)
        print(type(error).__name__, "bfloat17" in text and "bfloat16" in text)

def saved_model():
    tf.saved_model.load(folder)(tf.zeros((256, 256)))
def fit(kit):
    model = kit.Sequential([kit.layers.Dense(256, "relu") for _ in range(3)])
    model.compile("sgd", "mse")
    model.fit(tf.ones((256, 256)), tf.ones((256, 256)), batch_size=256, verbose=0)
def session():
    tf.compat.v1.disable_eager_execution()
    x = tf.compat.v1.placeholder(tf.float32, (256, 256))
    for _ in range(3):
        x = tf.nn.relu(tf.matmul(x, x))
    with tf.compat.v1.Session() as session:
        session.run(x, {"Placeholder:0": [[0.0] * 256] * 256})

os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
for program in (saved_model, lambda: fit(keras), lambda: fit(tf_keras), session):
    program()
    import tf_amp
    print(tf_amp.is_enabled(), len(tf_amp.plans()))
"""


@pytest.fixture(scope="module")
def printed(installed: Environment) -> list[str]:
    """Return what the programs print, each in its turn."""
    return installed.run(PROGRAMS, TF_AMP_OPT_LEVEL="O2")


def test_a_program_that_leaves_the_switch_off_is_as_it_was(printed: list[str]) -> None:
    assert printed[:5] == ["2.0"] * 4 + ["[]"]


def test_a_bad_value_is_named_for_every_trace_until_it_is_fixed(
    printed: list[str],
) -> None:
    assert printed[5:7] == ["ConfigError True"] * 2
    assert printed[7].startswith("True ")


def test_each_kind_of_program_runs_in_mixed_precision(printed: list[str]) -> None:
    plans = [0, *(int(line.split()[1]) for line in printed[7:])]
    assert len(plans) == 5 and sorted(set(plans)) == plans
