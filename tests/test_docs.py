"""The Python in docs/ runs, page by page, given what its readers have at hand."""

from __future__ import annotations

import pathlib
import re
import textwrap

import pytest

from tests.forking import run_forked_command
from tests.processes import ROOT
from tf_amp.commands import cli

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.M | re.S)
# As a line of a block, or in running text.
COMMAND = re.compile(r"(?:^(?:\$ )?|`)(tf-amp [^`\n|]+)", re.M)
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
    "report.md": "",
    "verify.md": "",
    "xla.md": "",
}


def test_commands_on_pages_exist_with_their_options() -> None:
    parser = cli._parser()
    (choices,) = [a.choices for a in parser._actions if isinstance(a.choices, dict)]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    seen = 0
    for page in pages:
        for line in COMMAND.findall(page.read_text()):
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
    blocks = BLOCK.findall((ROOT / "docs" / name).read_text())
    assert blocks
    given = "import tensorflow as tf, tf_amp\n" + textwrap.dedent(GIVEN[name])
    # There need be no GPU where this runs.
    code = "".join(code for code, _ in blocks).replace("GPU:", "CPU:")
    # Of loops in a tf.function the source is needed.
    (tmp_path / "page.py").write_text(given + code)
    printed = run_forked_command(["page.py"], cwd=tmp_path).lines()
    for _, text in blocks:
        if text and not text.startswith("$ "):
            assert text.rstrip() in "\n".join(printed)
