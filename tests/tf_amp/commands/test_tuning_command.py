"""`tf-amp tune`: what it shows, what it says it left, and what a killed one keeps."""

from __future__ import annotations

import pathlib
import re
import signal
import sys
import textwrap

import pytest

from grappler_pass.costs.database.price_database import CostDatabase, costs_path
from tests.forking import run_forked
from tests.gelu_program import gelu_program
from tests.lock_holding import lock_held
from tests.onednn import needs_gains
from tests.processes import ROOT, Outcome, run

TUNE = """
import os, sys
from tf_amp.commands import cli
from tf_amp.measuring import known_costs, progress, tuner
from grappler_pass.planning.draft import Outcome
os.environ["COLUMNS"] = "300"
# Comparisons have tests of their own, as have prices that a busy machine leaves unsure.
known_costs.SURE = float("inf")
tuner.OnlineTuner.outcome = lambda self, trial, decided: Outcome.UNKNOWN
{before}
sys.exit(cli.main({arguments!r}))
"""


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cache"


def tuned(cache: pathlib.Path, script: str, *options: str, before: str = "") -> Outcome:
    """Run `tf-amp tune` on a script; `before` runs in its process first."""
    path = cache.parent / "train.py"
    path.write_text(script)
    arguments = ["tune", *options, str(path)]
    code = TUNE.format(before=textwrap.dedent(before), arguments=arguments)
    return run_forked(code, env={"TF_AMP_CACHE": str(cache)})


def prices_in(cache: pathlib.Path) -> set[tuple[str, str]]:
    rows = CostDatabase(costs_path(cache)).rows()
    costs = [row for row in rows if hasattr(row, "measured")]
    return {(row.measured.probe.key, row.measured.dtype) for row in costs}


@needs_gains
def test_what_was_left_when_time_was_over_is_counted(cache):
    done = tuned(cache, gelu_program(), "--seconds", "0.03")
    assert done.code == 0, done.err
    assert re.search(r"tf-amp: time was over, [1-9]\d* left; run it again", done.err)
    assert "nothing was left" not in done.err


# After two ops the time is over for good, however long they took.
OVER = """
import time
clock = time.monotonic
def leap(state):
    if getattr(state, "done", 0) == 2:
        time.monotonic = lambda: clock() + 60.0
        tuner.OnlineTuner._time_for = lambda self, wanted: 0.0
progress.report_to(leap)
"""


@needs_gains
def test_what_was_left_is_said_beside_what_was_measured(cache):
    done = tuned(cache, gelu_program(), "--seconds", "60", before=OVER)
    assert "costs measured; kept in" in done.err
    assert re.search(r"time was over, [1-9]\d* left; run it again", done.err)
    assert prices_in(cache)


DETERMINED = """
tf.keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (gelu_program(DETERMINED), "under enable_op_determinism plans may not change"),
        (gelu_program('tf_amp.enable(tune="off")'), "tuning was switched off"),
        (
            gelu_program('tf_amp.enable(opt_level="O2")'),
            "level O2 does not look at costs",
        ),
        (
            gelu_program('tf_amp.enable(opt_level="O2")') + "\ntf_amp.disable()",
            "level O2 does not look at costs",
        ),
        (gelu_program('tf_amp.enable(opt_level="O0")'), "stays as it is at level O0"),
        (
            gelu_program('tf_amp.enable(device_profile="v100")'),
            "plans are made for v100",
        ),
        (gelu_program("tf_amp.disable()"), "the script switched mixed precision off"),
        (
            "import tensorflow as tf\ntf.function(lambda x: x + 1.0)(tf.ones([2]))",
            "no graph with a matrix product or convolution",
        ),
    ],
    ids=[
        "determinism",
        "off",
        "O2",
        "O2, then disabled",
        "O0",
        "profile",
        "disable",
        "no product",
    ],
)
def test_the_reason_why_nothing_is_measured_is_said(cache, script, reason):
    done = tuned(cache, script)
    assert done.code == 0, done.err
    assert reason in done.err
    assert "nothing was left" not in done.err and "run it again" not in done.err


def test_a_script_without_tensorflow_is_said_to_be_one(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("print(1)")
    command = [sys.executable, "-m", "tf_amp", "tune", str(script)]
    done = run(command, cwd=ROOT)
    assert done.code == 0, done.err
    assert "the script did not import TensorFlow" in " ".join(done.err.split())


@needs_gains
def test_prices_that_could_not_be_written_are_not_said_to_be_kept(cache):
    costs_path(cache).mkdir(parents=True)
    occupied = cache / "file"
    occupied.write_text("")
    for folder in (cache, occupied):
        done = tuned(folder, gelu_program())
        assert done.code == 0, done.err
        assert f"costs measured; not kept: {folder} cannot be used" in done.err
        assert "kept in" not in done.err.replace("cannot be kept in", "")


@needs_gains
def test_who_waits_for_another_process_says_so_once(cache):
    cache.mkdir()
    with lock_held(cache) as holder:
        done = tuned(cache, gelu_program() + "\nstep(x[:128])\n", "--seconds", "0.5")
    assert done.code == 0, done.err
    said = f"process {holder.pid} ("
    assert said in done.err and done.err.count("waiting for it to end") == 1
    assert "time was over" in done.err


# Killed when the second op is measured and not yet written: the first is what there is.
KILLED = """
import signal
tuner._KEEP_SECONDS = 0.0

def kill(state):
    if getattr(state, "done", 0) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

progress.report_to(kill)
"""
TOLD = """
def tell(state):
    for row in getattr(state, "rows", ()):
        print(row.probe.key, row.dtype, sep="\\t", flush=True)

progress.report_to(tell)
"""


# A second graph, of which no op is known from the first.
ANOTHER = """
v = tf.ones([320, 320])
tf.function(lambda x: tf.nn.gelu(x @ v))(tf.ones([320, 320]))
"""


@needs_gains
def test_one_that_is_killed_keeps_its_prices_and_the_next_measures_the_rest(cache):
    script = gelu_program() + ANOTHER
    killed = tuned(cache, script, before=KILLED)
    assert killed.code == -signal.SIGKILL
    kept = prices_in(cache)
    assert kept
    again = tuned(cache, script, before=TOLD)
    assert again.code == 0, again.err
    rest = {tuple(line.split("\t")) for line in again.out.splitlines()}
    assert rest and not rest & kept
    assert prices_in(cache) == kept | rest


# Standard error is a terminal, whose other end is read by a thread.
ON_A_TERMINAL = """
import pty, threading
os.environ.update(TERM="xterm", COLUMNS="100")
ours, theirs = pty.openpty()
os.dup2(theirs, 2)
os.close(theirs)
shown = bytearray()

def read():
    while True:
        try:
            shown.extend(os.read(ours, 4096))
        except OSError:
            return

threading.Thread(target=read, daemon=True).start()
import atexit, time
atexit.register(lambda: (time.sleep(0.2), print(shown.decode())))
"""


@needs_gains
def test_a_terminal_shows_a_bar_that_goes_when_measuring_is_over(cache):
    done = tuned(cache, gelu_program(), before=ON_A_TERMINAL)
    assert done.code == 0, done.out
    counts = [
        (int(a), int(b))
        for a, b in re.findall(r"measuring.*?(\d+)/(\d+)", done.out.replace("\x1b", ""))
    ]
    assert counts, done.out
    assert counts[0][0] < counts[-1][0] <= counts[-1][1]
    assert "\x1b[2K" in done.out and "costs measured; kept in" in done.out
    # Not on a terminal there is none.
    assert "measuring" not in tuned(cache.parent / "other", gelu_program()).err
