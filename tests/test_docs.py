"""What docs/ shows runs: Python page by page, commands one after the other.

Each is given what its readers have at hand. Commands that a page of a manual would
show run with their alternatives and options left out: that these exist is told by the
parser.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shutil
import textwrap
from collections.abc import Iterator

import pytest

from tests.command_lines import run_line
from tests.forking import run_forked, run_forked_command
from tests.processes import ROOT, Outcome
from tf_amp.commands import cli
from tf_amp.commands._shared import NOTHING

PYTHON = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.M | re.S)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
# In a line of a block, and in running text.
LINES = re.compile(r"^(?:\$ )?(tf-amp [^`\n|]+)", re.M)
INLINE = re.compile(r"`(tf-amp [^`\n|]+)`")
# What a page's blocks take for granted, beside `tf` and `tf_amp`.
GIVEN = {
    "bench.md": "",
    "block_sparse.md": "",
    "callbacks.md": """
        import keras
        x = y = tf.ones((8, 1))
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    """,
    "convert.md": "",
    "kernels.md": "",
    "loss_scaling.md": """
        import keras
        tf_amp.enable("float16")
        weight = tf.Variable(tf.ones((4, 4)))
        variables, batch, optimizer = [weight], tf.ones((2, 4)), keras.optimizers.SGD()

        @tf.function
        def train_step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x @ weight)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(batch @ weight)
    """,
    "placement.md": """
        import keras
        cpu = tf.config.list_physical_devices("CPU")[0]
        device = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [device, device])
        tf_amp.enable()
        x = y = batch = tf.ones((8, 4))
        train_step = tf.function(lambda x: x @ tf.ones((4, 4)))
        step = tf.function(lambda x: x @ tf.ones((4, 4)))
        with tf.Graph().as_default() as graph:
            tf.identity(tf.ones((4, 4)) @ tf.ones((4, 4)), name="out")
        graph_def = graph.as_graph_def()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
        loss = "mse"
    """,
    "replicas.md": """
        import keras
        cpu = tf.config.list_physical_devices("CPU")[0]
        device = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [device, device])
        dataset = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1))))
    """,
    "quickstart.md": "",
    "trackers.md": "",
    "report.md": "",
    "verify.md": "",
    "xla.md": "",
}


# Of a page's blocks: less of what takes long.
BRIEF_BLOCKS = {"quickstart.md": {"Dense(2048": "Dense(256", "12800": "1280"}}

# What a page's blocks import that `.[test]` does not bring.
NEEDED = {"trackers.md": ("mlflow", "wandb")}


def test_commands_on_pages_exist_with_their_options() -> None:
    parser = cli._parser()
    (choices,) = [a.choices for a in parser._actions if isinstance(a.choices, dict)]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    seen = 0
    for page in pages:
        text = page.read_text()
        typed = "\n".join(line for _, line in typed_lines(text))
        mentioned = LINES.findall(typed) + INLINE.findall(BLOCK.sub("", text))
        for line in mentioned:
            own = line.partition(" -- ")[0].partition("#")[0]
            name = own.split()[1]
            at = choices.get(name, parser)
            assert at is not parser or name[0] == "-" or "." in name, f"{page}: {line}"
            for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", own):
                seen += 1
                known = option in at._option_string_actions
                assert known, f"{page.name}: {line}: no {option}"
    assert seen > 30


def test_every_page_with_python_is_run() -> None:
    pages = (ROOT / "docs").glob("*.md")
    assert {page.name for page in pages if "```python" in page.read_text()} == {*GIVEN}


@pytest.mark.parametrize("name", GIVEN)
def test_the_blocks_of_a_page_run_and_print_what_it_says(
    name: str, tmp_path: pathlib.Path
) -> None:
    for module in NEEDED.get(name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed; make test-long brings it")
    blocks = PYTHON.findall((ROOT / "docs" / name).read_text())
    assert blocks
    given = "import tensorflow as tf, tf_amp\n" + textwrap.dedent(GIVEN[name])
    # There need be no GPU where this runs.
    code = "".join(code for code, _ in blocks).replace("GPU:", "CPU:")
    for long, brief in BRIEF_BLOCKS.get(name, {}).items():
        assert long in code
        code = code.replace(long, brief)
    # Of loops in a tf.function the source is needed.
    (tmp_path / "page.py").write_text(given + code)
    printed = run_forked_command(["page.py"], cwd=tmp_path).lines()
    for _, text in blocks:
        if text and not text.startswith("$ "):
            assert text.rstrip() in "\n".join(printed)


PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COMMAND = re.compile(r"(?:\$ )?((?:[A-Z_]+=\S+ )*(?:tf-amp|python) [^#\n]*)")
# Of what takes long: less.
BRIEFLY = {
    "bench": "--rounds=1 --methods=float32 --step-seconds=0.1",
    "calibrate": "--seconds 0.2",
}
# Of the commands that show a failure, the exit code; all others end well.
FAILS = {
    "tf-amp verify train.py --dtype float16 --opt-level O2 --bisect": 1,
    "tf-amp verify model --data bad.npz": 2,
}
# Said to take hours, or minutes in which they, or their like, are tested elsewhere; and
# what makes the environment that they run in.
LEFT_OUT = re.compile(
    r"python -m (tests.(yardstick|kernels)|venv)|.*python examples/"
    r"|tf-amp bench (scorer|train.py$|.*--largest-batch)"
)

SCRIPT = """
import keras, numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
model.compile("adam", "mse")
model.fit(np.ones((64, 64)), np.ones((64, 10)), batch_size=8, verbose=0)
"""
FILES = """
import sys, numpy as np, keras, tf_amp, tensorflow as tf
sys.argv = ["train.py"]
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
for name in ("SAVED_MODEL", "model", "scorer", "IN"):
    model.export(name, verbose=False)
np.savez("data.npz", **{model.inputs[0].name: np.ones((4, 64), np.float32)})
np.savez("bad.npz", x=np.ones((4, 64), np.float32))
plan = tf_amp.explain(tf.function(lambda x: x @ x), tf.ones((8, 8)))
open("plan.json", "w").write(plan.to_json())
for folder in ("FOLDER", "EARLIER"):
    tf_amp.enable(log_dir=folder)
    tf.function(lambda x: x @ x)(tf.ones((8, 8)))
    tf_amp.disable()
"""


def typed_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of blocks with their language, but for what is printed."""
    for language, block in BLOCK.findall(text):
        for line in block.splitlines():
            if language != "text" or line.startswith("$"):
                yield language, line


def commands_of(page: pathlib.Path) -> list[str]:
    """Return the commands of a page that run here."""
    lines = typed_lines(page.read_text())
    shell = [line for language, line in lines if language != "python"]
    found = [match[1] for line in shell if (match := COMMAND.match(line))]
    plain = [re.sub(r"\[.*?\]|(?<=\w)\|[\w|:]+|\.\.\.", "", each) for each in found]
    plain = [each.replace(" SCRIPT", " train.py") for each in plain]
    plain = [re.sub(r"(--batches \d+)[\d,]+", r"\1", each) for each in plain]
    single = [" ".join(each.split()) for each in plain]
    return [each for each in single if not LEFT_OUT.match(each)]


# Of each page, those that stand on no page before it.
COMMANDS: dict[pathlib.Path, list[str]] = {}
for _page in PAGES:
    _earlier = {command for found in COMMANDS.values() for command in found}
    _own = dict.fromkeys(commands_of(_page))
    COMMANDS[_page] = [command for command in _own if command not in _earlier]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with what the commands name."""
    folder = tmp_path_factory.mktemp("prepared")
    example = re.search(
        r"```python\n(.*?)```", (ROOT / "docs/bench.md").read_text(), re.S
    )
    assert example
    for name, text in {
        "train.py": SCRIPT,
        "my/models.py": example[1],
        "package/module.py": SCRIPT,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    run_forked(FILES, cwd=folder).lines()
    return folder


@pytest.mark.parametrize(
    "page", [page for page in PAGES if COMMANDS[page]], ids=lambda page: page.stem
)
def test_commands_run_in_order(
    page: pathlib.Path, prepared: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = shutil.copytree(prepared, tmp_path / "here")
    if page.stem == "verify":
        example = re.search(r"```python\n(.*?)```", page.read_text(), re.S)
        assert example
        (folder / "train.py").write_text(example[1])
    for command in COMMANDS[page]:
        done = outcome_of(command, folder)
        # A CPU without 16-bit units, or small steps, leave nothing to verify.
        codes = (FAILS.get(command, 0), *([NOTHING] if "verify" in command else []))
        assert done.code in codes, f"{command}\n{done.out}\n{done.err}"


def outcome_of(command: str, folder: pathlib.Path) -> Outcome:
    """Run a command as a shell would, the longest ones shortened."""
    own, dashes, of_script = command.replace(" --open", "").partition(" -- ")
    for name, less in BRIEFLY.items():
        if f"tf-amp {name} " in f"{own} ":
            own = f"{own} {less}"
    return run_line(own + dashes + of_script, folder)
