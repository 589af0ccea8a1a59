"""A SyncReplicasOptimizer of two workers, one of which overflows from some step on.

Gradients of both are alike, and exact in float16: after t steps the weight is
(1 - 2**-t) / 8, unless something else than true gradients of two pushes was averaged.
"""

import json

from tests.clusters import run_job

PROGRAM = """
import json
import time

import numpy as np
import tensorflow as tf

import tf_amp

v1 = tf.compat.v1
v1.disable_eager_execution()
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
cluster, task = resolver.cluster_spec(), resolver.task_id
server = tf.distribute.Server(cluster, job_name=resolver.task_type, task_index=task)
if resolver.task_type == "ps":
    server.join()

place = f"/job:worker/task:{task}"
with v1.device(v1.train.replica_device_setter(worker_device=place, cluster=cluster)):
    x = v1.placeholder(tf.float32, [4, 8])
    weight = v1.get_variable("w", [8, 1], initializer=v1.zeros_initializer())
    table = v1.get_variable("table", [8, 1], initializer=v1.zeros_initializer())
    rows = tf.gather(table, [0, 2])
    loss = tf.reduce_mean((x @ weight - 1) ** 2) / 2 + tf.reduce_sum((rows - 1) ** 2)
    global_step = v1.train.get_or_create_global_step()
    descent = v1.train.GradientDescentOptimizer(1 / 16)
    optimizer = v1.train.SyncReplicasOptimizer(descent, 2, 2)
    train = optimizer.minimize(loss, global_step=global_step)

good = np.ones((4, 8), "float32")
bad = np.full((4, 8), np.inf, "float32")
hooks = [
    optimizer.make_session_run_hook(task == 0, num_tokens=0),
    v1.train.StopAtStepHook(last_step=8),
]
config = v1.ConfigProto(device_filters=["/job:ps", place])
missing = v1.report_uninitialized_variables(v1.global_variables())
if task:
    # Who finds variables that the chief has not made yet looks again in 30 seconds.
    with v1.Session(server.target, config=config) as session:
        while session.run(missing).size:
            time.sleep(0.1)
runs = 0
with v1.train.MonitoredTrainingSession(
    server.target, task == 0, hooks=hooks, config=config, stop_grace_period_secs=1
) as session:
    while not session.should_stop():
        batch = bad if task == 1 and runs >= 2 else good
        values = session.run([global_step, weight, table, train], {x: batch})[:3]
        runs += 1
        if not session.should_stop():
            state = tf_amp.loss_scale_state(session=session._tf_sess())
            figures = runs, state.scale, state.skipped_steps
            low = any("float16" in str(d) for p in tf_amp.plans() for d in p.decisions)
            print(json.dumps([*[np.ravel(v)[0].item() for v in values], *figures, low]))
"""


def test_a_worker_that_overflows_neither_pushes_nor_blocks_the_other() -> None:
    told = run_job(
        PROGRAM,
        {"worker": 2, "ps": 1},
        {"TF_ENABLE_AUTO_MIXED_PRECISION": "float16", "TF_AMP_OPT_LEVEL": "O2"},
        serving=("ps",),
    )
    steady, overflowing = (
        [json.loads(line) for line in told["worker", task]] for task in (0, 1)
    )

    for step, weight, row, *_ in (*steady, *overflowing):
        assert weight in {(1 - 2.0**-t) / 8 for t in (step, step + 1)}
        assert row in {1 - (7 / 8) ** t for t in (step, step + 1)}
    assert max(line[0] for line in steady) == 7
    assert {line[4] for line in steady} == {2.0**15}
    assert {line[5] for line in steady} == {0}
    for _, _, _, runs, scale, skipped, _ in overflowing:
        assert skipped == max(0, runs - 2)
        assert scale == 2.0 ** (15 - skipped)
    assert overflowing[-1][5] >= 3
    assert all(line[-1] for line in (steady[-1], overflowing[-1]))
