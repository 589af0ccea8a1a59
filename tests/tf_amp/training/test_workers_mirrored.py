"""A MultiWorkerMirroredStrategy of two processes, told of nothing but the environment.

Keras 3 trains in a loop of its own, tf_keras by `fit`.
"""

import json

from tests.clusters import run_job

# A sum over 16 rows in another order, five steps of Adam on weights up to 1.
TOLERANCE = 5 * 16 * 2.0**-23

PROGRAM = """
import json
import math
import sys
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
import keras
import tf_keras
import tf_amp

VALUE = 1 + 2**-9 + 2**-12
DTYPES = {1.0: "bfloat16", 1 + 2**-9: "float16", VALUE: "float32"}
X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True) / 8
OWN = slice(8 * task, 8 * task + 8)

def tell(name, *values):
    print(f"{name}:", json.dumps(values), flush=True)

def model_of(module):
    module.utils.set_random_seed(0)
    layers = [module.layers.Dense(8, "relu"), module.layers.Dense(1)]
    model = module.Sequential(layers)
    model.build((None, 4))
    return model

def loop(model, optimizer, run):
    def step_of_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / 16
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))

    @tf.function
    def step(x, y):
        run(step_of_replica, (x, y))

    return step

def values(model, optimizer):
    slots = optimizer.variables
    slots = slots() if callable(slots) else slots
    parts = [getattr(v, "_value", v) for v in (*model.weights, *slots)]
    return [strategy.experimental_local_results(p)[0].numpy() for p in parts]

def same(before, after):
    return all(a.tobytes() == b.tobytes() for a, b in zip(before, after))

def figures():
    state = tf_amp.loss_scale_state()
    return int(state.scale), state.good_steps, state.skipped_steps

# 1. Its effect on numbers.
eye = tf.eye(8) * VALUE

@tf.function
def product():
    def in_replica():
        return tf.nn.relu(eye @ tf.eye(8))
    return strategy.run(in_replica)

tell("dtype", DTYPES[float(product()[0, 0])])

# 2. Scaled float32 on two workers, and one process without.
with tf_amp.mixed_precision_scope(opt_level="O0", loss_scale="dynamic"):
    with strategy.scope():
        model = model_of(keras)
        optimizer = keras.optimizers.Adam(0.05)
    step = loop(model, optimizer, strategy.run)
    for _ in range(5):
        step(X[OWN], Y[OWN])
with tf_amp.mixed_precision_scope(enabled=False):
    alone = model_of(keras)
    step_alone = loop(alone, keras.optimizers.Adam(0.05), lambda f, args: f(*args))
    for _ in range(5):
        step_alone(X, Y)
pairs = zip(values(model, optimizer), [w.numpy() for w in alone.weights])
tell("distance", float(max(np.abs(a - b).max() for a, b in pairs)), *figures())

# 3. float16: each worker in turn overflows.
def check(name, step, model, optimizer):
    step(X)
    for worker in range(2):
        before = values(model, optimizer)
        scale = figures()[0]
        step(X + np.float32(math.inf if worker == task else 0))
        skipped = same(before, values(model, optimizer))
        halved = scale / figures()[0]
        step(X)
        after = values(model, optimizer)
        trained = not same(before, after) and all(np.isfinite(v).all() for v in after)
        total = float(sum(np.abs(v).sum() for v in after))
        tell(f"{name} {worker}", skipped, halved, trained, *figures(), total)

with strategy.scope():
    model = model_of(keras)
    optimizer = keras.optimizers.Adam(0.05)
step = loop(model, optimizer, strategy.run)
check("keras", lambda x: step(x[OWN], Y[OWN]), model, optimizer)

with strategy.scope():
    model = model_of(tf_keras)
    optimizer = tf_keras.optimizers.Adam(0.05)
    model.compile(optimizer, "mse")

def fit(x):
    data = tf.data.Dataset.from_tensor_slices((x[OWN], Y[OWN])).batch(8)
    distributed = strategy.distribute_datasets_from_function(lambda _: data)
    model.fit(distributed, steps_per_epoch=1, verbose=0)

check("fit", fit, model, optimizer)

# 4. Gradients that one function computes, and another one is handed and cleans.
with strategy.scope():
    model = model_of(keras)
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)

@tf.function
def slopes(x, y):
    def in_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / 16
        return tape.gradient(loss, model.trainable_variables)
    return strategy.run(in_replica, (x, y))

@tf.function
def update(gradients):
    def in_replica(gradients):
        clean = [tf.where(tf.math.is_finite(g), g, 0.0) for g in gradients]
        optimizer.apply_gradients(zip(clean, model.trainable_variables))
    strategy.run(in_replica, (gradients,))

check("given", lambda x: update(slopes(x[OWN], Y[OWN])), model, optimizer)
"""


def test_two_workers_scale_and_skip_as_one() -> None:
    told = run_job(
        PROGRAM,
        {"worker": 2},
        {"TF_ENABLE_AUTO_MIXED_PRECISION": "float16", "TF_AMP_OPT_LEVEL": "O2"},
    )
    words = [
        {name: json.loads(rest) for name, _, rest in (s.partition(": ") for s in lines)}
        for lines in told.values()
    ]
    first, second = words

    assert first["dtype"] == second["dtype"] == ["float16"]
    for each in words:
        distance, scale, good, skipped = each["distance"]
        assert distance < TOLERANCE
        assert (scale, good, skipped) == (2**15, 5, 0)
    for way in ("keras 0", "keras 1", "fit 0", "fit 1", "given 0", "given 1"):
        # Scale, counters and weights of both are the same to the last bit.
        assert first[way] == second[way]
        assert first[way][:3] == [True, 2.0, True]
    assert first["fit 1"][5] == 4
