"""Commands show how far they are: by a bar on a terminal, else a line now and then."""

import os
import pty
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.processes import run, sources
from tf_amp.commands import _shared, cli
from tf_amp.run import progress


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A SavedModel and data of three batches for it."""
    folder = tmp_path_factory.mktemp("progress")
    module = tf.Module()
    module.fn = tf.function(
        lambda x: tf.nn.relu(x @ x), input_signature=[tf.TensorSpec([64, 64])]
    )
    tf.saved_model.save(module, str(folder / "model"))
    np.savez(folder / "data.npz", x=np.ones((3, 64, 64), np.float32))
    return folder


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "ranges {}/model --data {}/data.npz",
            [("running batches", done, 3) for done in range(3)],
        ),
        ("verify {}/model --opt-level O2", [("verifying signatures", 0, 1)]),
        (
            "convert {}/model {}/out --verify --overwrite",
            [("planning functions", 0, 1), ("comparing signatures", 0, 1)],
        ),
    ],
)
def test_tools_report_what_they_do(folder, command, expected, capsys):
    reported = []
    with progress.listened_to(lambda *each: reported.append(each)):
        assert cli.main(command.replace("{}", str(folder)).split()) == 0
    assert [each for each in reported if each[2]] == expected
    # What is captured is no terminal, and this takes less than a line's time.
    assert "running" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_terminal", "variable"), [(False, "FORCE_COLOR"), (True, "JPY_PARENT_PID")]
)
def test_without_a_terminal_or_in_a_notebook_there_is_a_line_now_and_then(
    is_terminal, variable, monkeypatch, capsys
):
    now = 0.0
    monkeypatch.setattr(_shared.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setenv(variable, "1")
    with _shared.progress_shown():
        for done in range(60):
            now = float(done)
            progress.report("float32, batch 8", done, 60)
        now = 100.0
        progress.report("writing")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        *(
            f"tf-amp: float32, batch 8 ({n} of 60, about {60 - n} seconds left) ..."
            for n in (15, 30, 45)
        ),
        "tf-amp: writing ...",
    ]


def test_a_terminal_shows_a_bar_and_the_output_is_that_of_a_pipe(folder):
    data = ("ranges", str(folder / "model"), "--data", str(folder / "data.npz"))
    command = [sys.executable, "-m", "tf_amp", *data]
    master, slave = pty.openpty()
    shown = bytearray()

    def read():
        while True:
            try:
                part = os.read(master, 1 << 16)
            except OSError:
                return
            if not part:
                return
            shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    env = {**sources(), "TERM": "xterm", "COLUMNS": "100"}
    shell = " ".join(command) + f" 2> {os.ttyname(slave)}"
    done = run(["bash", "-c", shell], env=env)
    os.close(slave)
    reader.join(timeout=10)
    os.close(master)
    assert done.code == 0
    assert b"running batches" in shown and b"/3" in shown
    assert " tensors in 3 batches" in done.out and "running" not in done.out
