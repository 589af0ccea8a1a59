"""Two workers in step: one plan, a warning where settings differ, and a death.

The second worker is told to plan for a device on which 16 bits never pay.
"""

import pathlib
import time

import tensorflow as tf

from tests.clusters import Job, job

CHIEF, OTHER = ("worker", 0), ("worker", 1)
PROGRAM = """
import os
import pathlib

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
VALUE = 1 + 2**-9 + 2**-12
DTYPES = {1.0: "bfloat16", 1 + 2**-9: "float16", VALUE: "float32"}
SIZE = 768

@tf.function
def joint(x, y):
    def in_replica():
        product = x
        for _ in range(4):
            product = tf.nn.relu(product @ y)
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, product[0, 0])
        return product[0, 0], total
    return strategy.run(in_replica)

own, total = joint(tf.eye(SIZE) * VALUE, tf.eye(SIZE))
print("dtype", DTYPES[float(own)], DTYPES[float(total) / 2], flush=True)

@tf.function
def alone(x, y):
    return tf.nn.relu(tf.nn.relu(x @ y) @ y)[0, 0]

print("alone", DTYPES[float(alone(tf.eye(SIZE) * VALUE, tf.eye(SIZE)))], flush=True)

with strategy.scope():
    steps = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

@tf.function
def step():
    def in_replica():
        context = tf.distribute.get_replica_context()
        steps.assign_add(context.all_reduce(tf.distribute.ReduceOp.SUM, 1))
    strategy.run(in_replica)

folder = pathlib.Path(os.environ["FOLDER"], str(task))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(steps=steps), folder, 3)
try:
    while True:
        step()
        manager.save()
        print("step", int(steps.numpy()), flush=True)
except tf.errors.OpError as error:
    print("ended", type(error).__name__, flush=True)
    os._exit(3)
"""


def wait_for(running: Job, text: str) -> None:
    """Wait until a worker has printed something."""
    end = time.monotonic() + 150
    while text not in running.outcome(OTHER).out:
        assert running.outcome(OTHER).code == -1, running.report()
        assert time.monotonic() < end, running.report()
        time.sleep(0.1)


def test_workers_follow_the_chief_and_survive_none_of_them(
    tmp_path: pathlib.Path,
) -> None:
    with job(
        PROGRAM,
        {"worker": 2},
        {"TF_ENABLE_AUTO_MIXED_PRECISION": "bfloat16", "FOLDER": str(tmp_path)},
        {
            CHIEF: {"TF_AMP_DEVICE_PROFILE": "cpu-avx512-bf16"},
            OTHER: {"TF_AMP_DEVICE_PROFILE": "cpu-generic"},
        },
    ) as running:
        wait_for(running, "step 6")
        running.kill(OTHER)
        chief = running.wait(serving=("nobody",))[CHIEF]
        other = running.outcome(OTHER)

    assert chief.out.splitlines()[0] == "dtype bfloat16 bfloat16"
    assert other.out.splitlines()[:2] == ["dtype bfloat16 bfloat16", "alone float32"]
    assert "TF_AMP_DEVICE_PROFILE is cpu-avx512-bf16 on worker 0" in other.err
    assert "disagree" in chief.err + other.err
    # TensorFlow's own error, and not a wait without end.
    assert chief.code == 3
    assert chief.out.splitlines()[-1].startswith("ended ")
    last = tf.train.latest_checkpoint(tmp_path / "0")
    reader = tf.train.load_checkpoint(last)
    assert reader.get_tensor("steps/.ATTRIBUTES/VARIABLE_VALUE") >= 6
