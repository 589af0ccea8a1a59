"""Replicas in one process, and workers in step, compare steps as one."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.clusters import run_job
from tests.forking import run_forked
from tests.tf_amp.compare.test_own_steps import PRELUDE

# Devices and workers are set up before anything else.
BEFORE = PRELUDE.replace("tf.Variable(0)", "None")
STEP = """
def step_of(size):
    @tf.function
    def step(x):
        def in_replica():
            delay = tf.constant([0.0], name="delay")
            y = tf.numpy_function(wait, [x, delay], tf.float32)
            y.set_shape([size, 384])
            y = (((y @ A) @ A) @ A) @ A
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, y[0, 0])
        return strategy.run(in_replica)
    return step
"""


@pytest.mark.parametrize("slow", ["mixed", "float32"])
def test_replicas_in_one_process_alternate(slow: str, tmp_path: pathlib.Path) -> None:
    done = run_forked(
        f"""
{BEFORE}
{STEP}
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
slow, seconds = {"" if slow == "mixed" else "float32"!r}, 0.1
tf_amp.enable(dtype="bfloat16")
labels = labels_of(60, step_of(384))
print("float32" in labels[:30], set(labels[-10:]), len(tf_amp.plans()))
""",
        env={"TF_AMP_CACHE": str(tmp_path), "TF_AMP_TUNE": "on"},
    )
    winner, plans = ("float32", 0) if slow == "mixed" else ("", 1)
    assert done.lines()[-1] == f"True {{{winner!r}}} {plans}"


WORKERS = """
import json
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
{BEFORE}
{STEP}
tf_amp.enable(dtype="bfloat16")
seconds = 0.1

def tell(name, *values):
    print(json.dumps([name, *values]), flush=True)

# Another worker than the chief is slow, in one instance or the other.
for size, label in ((384, ""), (256, "float32")):
    slow = label if task == 1 else None
    data = np.ones([size, 384], np.float32)
    step = step_of(size)
    lost = step if size == 384 else lost
    labels = labels_of(90, step, data)
    # A second trace of the same graph is known.
    again = labels_of(8, step_of(size), data)
    tell(label, labels, again, float(step(tf.constant(data))))
tell("plans", len(tf_amp.plans()))

# A plan that may well gain nothing waits on both, and comes in at the same call.
CostModel.price = lambda *args: believed(*args)._replace(error=3.0)
slow = "float32"
data = np.ones([128, 384], np.float32)
tell("late", labels_of(60, step_of(128), data))
CostModel.price = believed

# Who has been told nothing by the chief goes on with the plan that was begun with.
from tf_amp.config import workers
from tf_amp.compare.own_steps import StepComparison, Steps
from tf_amp.rewriting import agreement
agreement._VERDICT_SECONDS = 0.2
if task == 0:
    workers.Peers.tell = (
        lambda self, what, value, anew=False, tell=workers.Peers.tell:
        None if "/" in what else tell(self, what, value, anew=anew)
    )
slow = ""
data = np.ones([320, 384], np.float32)
step = step_of(320)
tell("silent", labels_of(90, step, data))

# Instances exchange the same: workers that do not agree do not wait for each other.
for site in call_sites.all_sites():
    if site.comparison is not None:
        site.comparison = StepComparison()
        site.comparison.decide(task == 0, Steps())
print(set(labels_of(3, lost, np.ones([384, 384], np.float32))), flush=True)
"""


def run_workers(program: str, cache: pathlib.Path) -> dict[tuple[str, int], list[str]]:
    """Return what each of two workers prints, by its name."""
    env = {"TF_AMP_CACHE": str(cache), "TF_AMP_TUNE": "on"}
    return run_job(program, {"worker": 2}, env)


def test_workers_switch_at_the_same_call_and_share_a_verdict(
    tmp_path: pathlib.Path,
) -> None:
    told = run_workers(WORKERS.format(BEFORE=BEFORE, STEP=STEP), tmp_path)
    chief, other = (
        [json.loads(line) for line in told["worker", task] if line.startswith("[")]
        for task in (0, 1)
    )
    assert chief == other
    assert told["worker", 0][-1] == "{''}"
    assert told["worker", 1][-1] == "{'float32'}"
    (_, lost, again, _), (_, won, anew, _), plans, (_, late), (_, silent) = chief
    for labels, winner in ((lost, "float32"), (won, ""), (silent, "")):
        assert "float32" in labels[:30]
        assert set(labels[-8:]) == {winner}
    assert again == anew == [""] * 8
    assert late[:22] == [""] * 20 + ["16 bits"] * 2
    assert late[-8:] == ["16 bits"] * 8
    assert plans == ["plans", 2]
    assert chief[0][3] == pytest.approx(chief[1][3], rel=0.02)
