"""Comparisons of steps from process to process: resumed, killed, remembered."""

from __future__ import annotations

import pathlib
import signal

import pytest

from tests.forking import run_forked
from tests.tf_amp.compare.test_own_steps import PRELUDE, run
from tf_amp.compare.verdicts import memory_path

# Trains until the steps of the last six calls are no longer compared, which alternate
# every other call; it saves each step, and may be killed by itself on the way.
TRAINING = """
import os
import signal

slow = {slow!r}
optimizer = tf.keras.optimizers.SGD()
saved = tf.train.Checkpoint(count=count, optimizer=optimizer)
manager = tf.train.CheckpointManager(saved, {folder!r}, max_to_keep=1)
tf_amp.enable(dtype="bfloat16")
saved.restore(manager.latest_checkpoint)
begun, labels = int(count), []
while len(labels) < 10 or len(set(labels[-6:])) > 1:
    labels += labels_of(1)
    manager.save()
    if int(count) == {killed_at}:
        os.kill(os.getpid(), signal.SIGKILL)
equal = int(count) == begun + len(labels)
print(begun, equal, sorted(set(labels)), labels[-1:], len(tf_amp.plans()))
"""


def train(
    folder: pathlib.Path, cache: pathlib.Path, slow: str, killed_at: int = 0
) -> tuple[int, str]:
    """Return how a training ended, and what it printed last."""
    code = TRAINING.format(slow=slow, folder=str(folder), killed_at=killed_at)
    env = {"TF_AMP_CACHE": str(cache), "TF_AMP_STRICT": "1", "TF_AMP_TUNE": "on"}
    done = run_forked(PRELUDE + code, env=env)
    return done.code, (done.out.splitlines() or [""])[-1]


# Before the first call in float32, before the first pair, and among the pairs.
@pytest.mark.parametrize("killed_at", [3, 6, 11])
def test_a_job_killed_during_a_comparison_goes_on(
    killed_at: int, tmp_path: pathlib.Path
) -> None:
    given = tmp_path / "saved", tmp_path / "cache", "float32"
    assert train(*given, killed_at) == (-signal.SIGKILL, "")
    code, last = train(*given)
    assert (code, last) == (0, f"{killed_at} True ['', 'float32'] [''] 1")
    if killed_at == 3:
        # Nothing but the checkpoint tells the plan, which is not compared again.
        _, last = train(given[0], tmp_path / "other cache", "float32")
        assert last.partition(" ")[2] == "True [''] [''] 1"


def test_a_plan_that_has_lost_is_resumed_and_not_compared(
    tmp_path: pathlib.Path,
) -> None:
    folder = tmp_path / "saved"
    _, first = train(folder, tmp_path / "cache", "")
    assert first.startswith("0 True ['', 'float32'")
    _, last = train(folder, tmp_path / "other cache", "")
    assert last.partition(" ")[2] == "True [''] [''] 0"


def test_the_same_verdict_makes_the_same_losses(tmp_path: pathlib.Path) -> None:
    code = """
slow = "float32"
weight = tf.Variable(tf.random.stateless_normal([384, 384], [1, 2]) / 20)

@tf.function
def train(x):
    x = tf.numpy_function(wait, [x, tf.constant([0.0], name="delay")], tf.float32)
    x.set_shape([384, 384])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.relu(x @ weight) @ weight - 1) ** 2)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss

tf_amp.enable(dtype="bfloat16")
losses = []
labels = labels_of(40, lambda x: losses.append(float(train(x))))
print(sorted(set(labels)), [loss.hex() for loss in losses])
"""
    first, *others = (run(code, tmp_path)[-1] for _ in range(3))
    assert first.startswith("['', 'float32']")
    assert others[0].startswith("['']")
    assert others[0] == others[1]


# Under enable_op_determinism two processes make the same plan, byte for byte.
DETERMINED = """
import tensorflow as tf
import tf_amp

tf.keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
tf_amp.enable(dtype="bfloat16", opt_level="O1")

@tf.function
def step(x):
    for _ in range(3):
        x = tf.tanh(x @ x)
    return x

x = tf.ones([512, 512])
{before}
for _ in range(30):
    step(x)
print(tf_amp.explain(step, x).to_json())
for plan in tf_amp.plans():
    print(plan.to_json())
"""
# As an earlier process would have learned it of a product.
LEARN = """
from grappler_pass.costs import OpCall, TensorSpec
from tf_amp.config.amp_config import AmpConfig
from tf_amp.compare.verdicts import memory_of
from tf_amp.rewriting.graph_settings import settings_from_config
from tf_amp.tracing.stamps import current_config

spec = TensorSpec((512, 512), "float32")
model = settings_from_config(current_config(), "CPU").models["CPU"]
call = OpCall("MatMul", {}, (spec, spec), (spec,))
cells = [model.expected(call, dtype).cell for dtype in ("float32", "bfloat16")]
readings = [[0.1] * 3, [-3.0] * 3]
memory_of(current_config().cache_dir, "CPU").learn(dict(zip(cells, readings)))
"""


def plans_of(cache: pathlib.Path, before: str = "") -> str:
    env = {"TF_AMP_CACHE": str(cache), "TF_AMP_TUNE": "on"}
    done = run_forked(DETERMINED.format(before=before), env=env)
    assert done.code == 0, done.err
    return done.out


def test_with_nothing_learned_plans_are_equal_and_nothing_is(
    tmp_path: pathlib.Path,
) -> None:
    first = plans_of(tmp_path)
    assert first == plans_of(tmp_path)
    assert not memory_path(tmp_path).exists() and '"learned"' not in first


def test_what_was_learned_is_an_input_of_the_plan_and_stays_as_it_is(
    tmp_path: pathlib.Path,
) -> None:
    plans_of(tmp_path, LEARN)
    before = memory_path(tmp_path).read_text()
    first = plans_of(tmp_path)
    assert first == plans_of(tmp_path)
    assert '"learned"' in first and '"bfloat16"' in first
    assert memory_path(tmp_path).read_text() == before
