"""What measures on a device, and the commands that do."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from grappler_pass.costs import DeviceProfile
from tests.gpu.device import ON_THE_DEVICE, lines_of, run_command
from tests.placing import GPUS, KIND
from tests.tf_amp.compare.test_own_steps import PRELUDE
from tf_amp.calibrate.gpu import DTYPES

pytestmark = ON_THE_DEVICE

# Products that would gain more than their casts cost, were 16 bits as fast as believed.
SIDE = 2048 if GPUS else 384
COMPARED = PRELUDE.replace("384", str(SIDE))


@pytest.mark.parametrize("slow", ["mixed", "float32"])
def test_steps_in_doubt_go_both_ways_and_then_the_faster(
    slow: str, tmp_path: pathlib.Path
) -> None:
    program = f"""
{COMPARED}
slow = {"" if slow == "mixed" else "float32"!r}
tf_amp.enable(dtype="bfloat16")
labels = labels_of(60)
print({{"", "float32"}} <= set(labels[:30]), set(labels[-10:]), count.numpy())
"""
    env = {"TF_AMP_CACHE": str(tmp_path), "TF_AMP_TUNE": "on", "TF_AMP_STRICT": "1"}
    winner = "float32" if slow == "mixed" else ""
    assert lines_of(program, **env)[-1] == f"True {{{winner!r}}} 60"


STEPS = f"""
import tensorflow as tf

def make_step(batch):
    weight = tf.Variable(tf.random.stateless_normal([{SIDE}, {SIDE}], [1, 2]) / {SIDE})

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            for _ in range(4):
                x = tf.tanh(x @ weight)
            loss = tf.reduce_mean(x ** 2)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return lambda: step(tf.random.stateless_normal([batch, {SIDE}], [3, 4]))
"""
BATCH = 4096 if GPUS else 64


def test_bench_times_steps_and_says_what_ran_in_16_bits(tmp_path) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    given = ["steps:make_step", "--methods", "tf-amp:OPT_LEVEL=O2", "--batches"]
    short = ["--rounds", "1", "--step-seconds", "0.3", "--json", "kept.json"]
    done = run_command("bench", *given, str(BATCH), *short, cwd=tmp_path)
    assert done.code == 0, done.err
    kept = json.loads((tmp_path / "kept.json").read_text())
    low = {each["method"]: each["ops"]["low"] for each in kept["samples"]}
    ours = low.pop("tf-amp:OPT_LEVEL=O2")
    assert low == {"float32": 0, "float32 again": 0}
    assert ours > 0


SCRIPT = f"""
import tensorflow as tf

@tf.function
def train(x):
    return tf.nn.relu(x @ x, name="top") @ x

for _ in range(3):
    train(tf.ones([{SIDE}, {SIDE}]))
"""


def test_a_report_shows_where_the_time_of_a_script_goes(tmp_path) -> None:
    for needed in ("jinja2", "plotly"):
        pytest.importorskip(needed, reason="no page is drawn without it")
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {"TF_AMP_OPT_LEVEL": "O2"}
    given = ("report", "train.py", "-o", "page.html")
    done = run_command(*given, cwd=tmp_path, env=env)
    assert done.code == 0, done.err
    html = (tmp_path / "page.html").read_text()
    assert "Precision of train.py" in html and "Where the time goes" in html
    share = re.search(r"<b>(\d+)%</b><span>of the time in \w+16</span>", html)
    assert share is not None and int(share[1]) > 50
    device = re.search(r"Times of a step on (\S+) at level", html)
    assert device is not None and device[1].startswith("cpu") == (not GPUS)


def test_calibrate_measures_the_device_and_plans_go_by_it(tmp_path) -> None:
    env = {"TF_AMP_CACHE": str(tmp_path)}
    seconds = "30" if GPUS else "1"
    done = run_command("calibrate", "--seconds", seconds, cwd=tmp_path, env=env)
    assert done.code == 0, done.err
    (path,) = tmp_path.glob("profiles/*.json")
    profile = DeviceProfile.load(path)
    assert profile.kind == KIND.lower()
    doctor = run_command("doctor", "--all", cwd=tmp_path, env=env)
    assert re.search(rf"{KIND} .*profile calibrated, measured here on ", doctor.out)
    if GPUS:
        rates = profile.roofline.matrix_flops
        assert rates["bfloat16"] > rates["float32"]
        assert profile.roofline.overhead_seconds < profile.roofline.dispatch_seconds
        square = (1024.0, 1024.0, 1024.0)
        times = {t: profile.grid("matmul", t).seconds(square) for t in DTYPES}
        assert times["float16"] < times["float32"]
