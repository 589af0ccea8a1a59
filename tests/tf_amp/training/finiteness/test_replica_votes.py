"""Replicas that take gradients where they cannot meet skip a step together too.

They cannot in a function, a branch or a loop that each of them traces for itself.
"""

import textwrap

import pytest

from tests.forking import run_forked

PROGRAM = """
import math
import keras
import numpy as np
import tensorflow as tf
from tests.scaling import figures, scaled_by
from tf_amp import DynamicLossScale

cpu, = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(DEVICES)
count = strategy.num_replicas_in_sync
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)

def slopes(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ v) ** 2)
    return tape.gradient(loss, v)

def in_branch(x):
    return tf.cond(tf.size(x) > 0, lambda: slopes(x), lambda: tf.zeros([4, 1]))

def in_loop(x):
    add = lambda i, total: (i + 1, total + slopes(x))
    return tf.while_loop(lambda i, _: i < 2, add, (0, tf.zeros([4, 1])))[1]

def clipped(x):
    return tf.clip_by_value(tf.function(slopes)(x), -0.1, 0.1)

def per_example(x):
    return tf.function(lambda x: tf.vectorized_map(lambda r: slopes(r[None]), x))(x)

WAYS = {
    "replica": slopes,
    "function": lambda x: tf.function(slopes)(x),
    "branch": in_branch,
    "loop": in_loop,
    "clipped": clipped,
    "loop of vectors": lambda x: tf.reduce_mean(per_example(x), 0),
}

def copies(variable):
    return [p.numpy() for p in strategy.experimental_local_results(variable)]

def step_of(way):
    inner = WAYS[way]
    @tf.function
    def step(x):
        def on_replica(x):
            optimizer.apply([inner(x)], [v])
        strategy.run(on_replica, args=(x,))
    return step

def given(bad):
    batches = [X.copy() for _ in range(count)]
    for replica in bad:
        batches[replica][0] = math.inf
    function = lambda context: tf.constant(batches[context.replica_id_in_sync_group])
    return strategy.experimental_distribute_values_from_function(function)
"""

BODY = """
for way in NAMES:
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale, strategy.scope():
        v = tf.Variable(tf.ones([4, 1]))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([v])
        step = step_of(way)
        step(given([]))
        good = figures(loss_scale)
        for bad in ([0], [count - 1], range(count)):
            before = copies(v)
            step(given(bad))
            kept = all(map(np.array_equal, before, copies(v)))
            print(way, kept, *map(int, figures(loss_scale)))
        step(given([]))
        after = copies(v)
        trained = not np.array_equal(before[0], after[0])
        alike = all(np.array_equal(after[0], other) for other in after)
        print(trained, alike, *map(int, good[1:]), *map(int, figures(loss_scale)[1:]))
"""


def lines_of(names, devices=("CPU:0", "CPU:1"), body=BODY):
    known = f"DEVICES = {list(devices)}\nNAMES = {list(names)}\n"
    code = known + textwrap.dedent(PROGRAM) + textwrap.dedent(body)
    return run_forked(code, env={"TF_AMP_TUNE": "off"}).lines()


@pytest.mark.parametrize(
    ("ways", "devices"),
    [
        (
            ["function", "branch", "loop", "clipped", "loop of vectors"],
            ["CPU:0", "CPU:1"],
        ),
        (["replica", "function"], ["CPU:0"]),
    ],
    ids=["two", "one"],
)
def test_an_overflow_on_any_replica_skips_the_step_on_all_and_halves_once(
    ways, devices
):
    each = [
        "{} True 512 0 1",
        "{} True 256 0 2",
        "{} True 128 0 3",
        "True True 1 0 1 3",
    ]
    expected = [line.format(way) for way in ways for line in each]
    assert lines_of(ways, devices) == expected


def test_gradients_are_those_without_scaling_and_as_they_are_where_they_overflow():
    lines = lines_of(
        [],
        body="""
        def run():
            @tf.function
            def compute(x):
                return strategy.run(lambda x: tf.function(slopes)(x), args=(x,))
            return lambda bad: strategy.experimental_local_results(compute(given(bad)))

        with strategy.scope():
            v = tf.Variable(tf.ones([4, 1]))
            plain = run()([])
            with scaled_by(DynamicLossScale(initial=2.0**10)):
                compute = run()
                same = map(np.array_equal, plain, compute([]))
                print(all(same), [bool(np.isfinite(r).all()) for r in compute([1])])
        """,
    )
    assert lines == ["True [True, False]"]


def test_eager_replicas_skip_together():
    lines = lines_of(
        [],
        body="""
        with scaled_by(DynamicLossScale(initial=2.0**10)) as scale, strategy.scope():
            v = tf.Variable(tf.ones([4, 1]))
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build([v])
            inner = tf.function(slopes)
            def step(x):
                strategy.run(lambda x: optimizer.apply([inner(x)], [v]), args=(x,))
            for bad in ([], [1], [0], []):
                before = copies(v)
                step(given(bad))
                print(all(map(np.array_equal, before, copies(v))), *figures(scale))
        """,
    )
    assert lines == [
        "False 1024.0 1 0",
        "True 512.0 0 1",
        "True 256.0 0 2",
        "False 256.0 1 2",
    ]


def test_what_another_training_never_applied_skips_no_step_of_eager_replicas():
    lines = lines_of(
        [],
        body="""
        def training():
            global v
            v = tf.Variable(tf.ones([4, 1]))
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build([v])
            inner = tf.function(slopes)
            return v, optimizer, inner

        with strategy.scope():
            with scaled_by(DynamicLossScale(initial=2.0**10)):
                other, _, inner = training()
                strategy.run(lambda x: inner(x), args=(given([0]),))
            with scaled_by(DynamicLossScale(initial=2.0**10)) as scale:
                v, optimizer, inner = training()
                step = lambda x: optimizer.apply([tf.clip_by_norm(inner(x), 1.0)], [v])
                for bad in ([], [1], []):
                    before = copies(v)
                    strategy.run(step, args=(given(bad),))
                    print(all(map(np.array_equal, before, copies(v))), *figures(scale))
        """,
    )
    assert lines == ["False 1024.0 1 0", "True 512.0 0 1", "False 512.0 1 1"]


def test_each_optimizer_skips_the_overflows_of_its_own_gradients_only():
    lines = lines_of(
        [],
        body="""
        def slopes_of(w):
            def slopes(x):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((x @ w) ** 2)
                return tape.gradient(loss, w)
            return tf.function(slopes)

        def together(x, y):
            slopes = [one(z) for one, z in zip(inner, (x, y))]
            for optimizer, slope, w in zip(optimizers, slopes, weights):
                optimizer.apply([slope], [w])

        def in_turn(x, y):
            for optimizer, one, z, w in zip(optimizers, inner, (x, y), weights):
                optimizer.apply([one(z)], [w])

        for on_replica in (together, in_turn):
            loss_scale = DynamicLossScale(initial=2.0**10)
            with scaled_by(loss_scale), strategy.scope():
                weights = [tf.Variable(tf.ones([4, 1])) for _ in range(2)]
                optimizers = [keras.optimizers.SGD(0.1) for _ in weights]
                inner = [slopes_of(w) for w in weights]
                for optimizer, w in zip(optimizers, weights):
                    optimizer.build([w])

                def values():
                    pairs = zip(optimizers, weights)
                    return [[*copies(o.iterations.value), *copies(w)] for o, w in pairs]

                @tf.function
                def step(x, y):
                    strategy.run(on_replica, args=(x, y))

                for bad, other_bad in (([], []), ([], [1]), ([0], []), ([], [])):
                    before = values()
                    step(given(bad), given(other_bad))
                    pairs = zip(before, values())
                    kept = [all(map(np.array_equal, *pair)) for pair in pairs]
                    print(*kept, *map(int, figures(loss_scale)))
        """,
    )
    each = ["False False 1024", "False True 512", "True False 256", "False False 256"]
    assert [line.rsplit(" ", 2)[0] for line in lines] == [*each, *each]


@pytest.mark.parametrize("where", ["traced", "eager"])
def test_an_overflow_of_inner_gradients_counts_once(where):
    lines = lines_of(
        [],
        body=f"""
        def penalty(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum((x @ v) ** 2)
            return tf.reduce_sum(tape.gradient(y, x) ** 2)

        {"inner = tf.function(penalty)" if where == "traced" else "inner = penalty"}

        def on_replica(x):
            with tf.GradientTape() as tape:
                loss = inner(x)
            optimizer.apply([tape.gradient(loss, v)], [v])

        def step(x):
            strategy.run(on_replica, args=(x,))

        {"step = tf.function(step)" if where == "traced" else ""}
        with scaled_by(DynamicLossScale(initial=2.0**10)) as scale, strategy.scope():
            v = tf.Variable(tf.ones([4, 1]))
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build([v])
            for bad in ([], [0], [], [1], []):
                step(given(bad))
                steps = copies(optimizer.iterations.value)[0]
                print(*map(int, figures(scale)), steps)
        """,
    )
    assert lines == [
        "1024 2 0 1",
        "512 0 1 1",
        "512 2 1 2",
        "256 0 2 2",
        "256 2 2 3",
    ]
