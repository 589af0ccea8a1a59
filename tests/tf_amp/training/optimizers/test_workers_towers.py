"""A `tf.Graph` of one client with a tower in each of two processes."""

import json

from tests.clusters import run_job

PROGRAM = """
import json

import numpy as np
import tensorflow as tf

import tf_amp

v1 = tf.compat.v1
v1.disable_eager_execution()
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
task = {"job_name": resolver.task_type, "task_index": resolver.task_id}
server = tf.distribute.Server(resolver.cluster_spec(), **task)
if resolver.task_type == "server":
    server.join()

with tf.device("/job:server/task:0"):
    weight = v1.get_variable("w", [8, 1], initializer=v1.zeros_initializer())
    step = v1.train.get_or_create_global_step()
optimizer = v1.train.MomentumOptimizer(1 / 16, 0.5)
inputs, gradients = [], []
for place in ("/job:client/task:0", "/job:server/task:0"):
    with tf.device(place):
        x = v1.placeholder(tf.float32, [4, 8])
        loss = tf.reduce_mean((x @ weight - 1) ** 2) / 2
        inputs.append(x)
        gradients.append(optimizer.compute_gradients(loss, [weight])[0][0])
train = optimizer.apply_gradients([(tf.add_n(gradients) / 2, weight)], step)

good = np.ones((4, 8), "float32")
bad = good * np.inf
with v1.Session(server.target) as session:
    session.run(v1.global_variables_initializer())
    for batches in ((good, good), (bad, good), (good, bad), (bad, bad), (good, good)):
        session.run(train, dict(zip(inputs, batches)))
        state = tf_amp.loss_scale_state(session=session)
        values = session.run([step, weight])
        figures = state.scale, state.skipped_steps
        print(json.dumps([values[0].item(), values[1][0, 0].item(), *figures]))
    low = any("float16" in str(d) for p in tf_amp.plans() for d in p.decisions)
    print(json.dumps(low))
"""


def test_towers_of_two_processes_skip_together() -> None:
    told = run_job(
        PROGRAM,
        {"client": 1, "server": 1},
        {"TF_ENABLE_AUTO_MIXED_PRECISION": "float16", "TF_AMP_OPT_LEVEL": "O2"},
        serving=("server",),
    )["client", 0]
    *steps, low = map(json.loads, told)

    assert low
    # Gradients are exact: -1, then -0.5 beside half of the last one.
    assert steps == [
        [1, 1 / 16, 2.0**15, 0],
        [1, 1 / 16, 2.0**14, 1],
        [1, 1 / 16, 2.0**13, 2],
        [1, 1 / 16, 2.0**12, 3],
        [2, 1 / 16 + 1 / 16, 2.0**12, 3],
    ]
