"""A ParameterServerStrategy of four processes: servers compute as the coordinator says.

The servers are told nothing but the environment, and run nothing but `join`.
"""

import json

from tests.clusters import run_job

PROGRAM = """
import json
import math
import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    task = {"job_name": resolver.task_type, "task_index": resolver.task_id}
    tf.distribute.Server(resolver.cluster_spec(), **task).join()

import tf_keras
import tf_amp
from tf_amp.training.scale_state import latest_state
from tf_amp.training.scale_state import on_each_worker

strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
VALUE = 1 + 2**-9 + 2**-12
DTYPES = {1.0: "bfloat16", 1 + 2**-9: "float16", VALUE: "float32"}

def tell(name, *values):
    print(name, json.dumps(values), flush=True)

with strategy.scope():
    weight = tf.Variable(tf.eye(8) * VALUE)
    offset = tf.Variable(tf.zeros(8))

def dtype():
    @tf.function
    def product():
        # Fused to one node, which has no attribute left.
        return tf.nn.relu(tf.nn.bias_add(tf.eye(8) @ weight, offset))[0, 0]

    return DTYPES[float(coordinator.schedule(product).fetch())]

tell("environment", dtype())
with tf_amp.mixed_precision_scope(enabled=False):
    tell("disabled", dtype())
with tf_amp.mixed_precision_scope(dtype="bfloat16"):
    tell("bfloat16", dtype())
with tf_amp.float32_scope():
    tell("float32", dtype())

with strategy.scope():
    model_weight = tf.Variable(tf.ones((4, 1)))
    optimizer = tf_keras.optimizers.Adam(0.1)
    optimizer.build([model_weight])

@tf.function
def step(x):
    def step_of_replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ model_weight) ** 2)
        gradient = tape.gradient(loss, model_weight)
        optimizer.apply_gradients([(gradient, model_weight)])
        return loss

    return strategy.run(step_of_replica, (x,))

GOOD = tf.ones((8, 4)) / 16
BAD = tf.fill((8, 4), math.inf)

def train(*batches):
    for batch in batches:
        coordinator.schedule(step, (batch,))
    coordinator.join()
    return [v.numpy().tolist() for v in (model_weight, *optimizer.variables)]

def scales():
    found = on_each_worker(lambda: latest_state().read())
    names = latest_state().names
    floats = [v["floats"][names["floats"].index("scale")] for v in found]
    counts = [v["counters"][names["counters"].index("skipped_steps")] for v in found]
    return [float(v) for v in floats], [int(v) for v in counts]

before = train(GOOD)
tell("good", *scales(), int(optimizer.iterations.numpy()))
after = train(BAD)
tell("bad", before == after, *scales(), tf_amp.loss_scale_state().scale)
begin = int(optimizer.iterations.numpy())
last = train(GOOD, BAD, GOOD, BAD, GOOD, GOOD)
finite = all(math.isfinite(v) for v in tf.nest.flatten(last))
tell("mixed", last != after, finite, int(optimizer.iterations.numpy()) - begin)
tell("skipped", sum(scales()[1]))
os._exit(0)
"""


def test_servers_rewrite_and_scale_each_for_itself() -> None:
    lines = run_job(
        PROGRAM,
        {"worker": 2, "ps": 1, "chief": 1},
        {"TF_ENABLE_AUTO_MIXED_PRECISION": "float16", "TF_AMP_OPT_LEVEL": "O2"},
        serving=("worker", "ps"),
    )["chief", 0]
    words = (line.partition(" ") for line in lines)
    told = {name: json.loads(rest) for name, _, rest in words}

    assert told["environment"] == ["float16"]
    assert told["disabled"] == ["float32"]
    assert told["bfloat16"] == ["bfloat16"]
    assert told["float32"] == ["float32"]
    first, _, applied = told["good"]
    assert applied == 1
    kept, scales, skipped, lowest = told["bad"]
    assert kept
    # The scale of the worker that overflowed is halved, the other's is what it was.
    assert sorted(scales) == [first[0] / 2, first[0]]
    assert sorted(skipped) == [0, 1]
    assert lowest == first[0] / 2
    assert told["mixed"] == [True, True, 4]
    assert told["skipped"] == [3]
