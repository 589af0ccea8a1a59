"""Loss scaling in whole programs: real float16, two replicas, tf_keras."""

import textwrap

from tests.forking import run_forked

PROGRAM = """
import math
import numpy as np
import tensorflow as tf
import tf_amp

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)

def model_with(optimizer):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.build((None, 4))
    model.compile(optimizer, "mse")
    return model

def parts(variable):
    variable = variable.value if not hasattr(variable, "assign_add") else variable
    variable = getattr(variable, "_value", variable)
    return tf.distribute.get_strategy().experimental_local_results(variable)

def values(model):
    optimizer = model.optimizer
    slots = optimizer.variables
    slots = slots() if callable(slots) else slots
    variables = [*model.weights, *slots, optimizer.iterations]
    return [part.numpy() for v in variables for part in parts(v)]

def same(before, after):
    return all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))

def figures():
    state = tf_amp.loss_scale_state()
    return int(state.scale), state.good_steps, state.skipped_steps

def check(model, train, rows):
    inputs = [X]
    for some in rows:
        bad = X.copy()
        bad[some] = math.inf
        inputs += [bad, X]
    seen = []
    train(inputs, lambda: seen.append((values(model), figures())))
    triples = zip(seen[:-2:2], seen[1::2], seen[2::2], strict=True)
    for (before, _), (kept, _), (after, told) in triples:
        skipped = same(before, kept)
        trained = not same(before, after) and all(map(np.all, map(np.isfinite, after)))
        print(skipped, trained, *told, after[-1])

def fit(model):
    def train(inputs, look):
        pairs = np.concatenate(inputs), np.concatenate([Y] * len(inputs))
        data = tf.data.Dataset.from_tensor_slices(pairs).batch(16)
        told = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: look())
        model.fit(data, verbose=0, callbacks=[told])
    return train
"""

REPLICAS = """
cpu, = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
EACH = [slice(0, 8), slice(8, 16)]
"""


def lines_of(program, kit="keras", **env):
    code = f"import {kit} as keras" + PROGRAM + textwrap.dedent(program)
    return run_forked(code, env=env).lines()


def test_float16_scales_by_itself_and_survives_overflows():
    lines = lines_of(
        """
        model = model_with(keras.optimizers.Adam(0.01))
        check(model, fit(model), [slice(3, 4)])
        print(any("float16" in str(plan) for plan in tf_amp.plans()))
        """,
        TF_ENABLE_AUTO_MIXED_PRECISION="float16",
        TF_AMP_OPT_LEVEL="O2",
        TF_AMP_LOSS_SCALE="dynamic:initial=1024",
    )
    assert lines == ["True True 512 1 1 2", "True"]


def test_bfloat16_is_scaled_only_when_told_to():
    lines = lines_of(
        """
        x = tf.Variable(2.0)
        def slope():
            with tf.GradientTape() as tape:
                y = x * x
            return tape.gradient(y, x)
        tf_amp.enable("bfloat16")
        tf.function(slope)()
        print(*figures())
        tf_amp.enable("bfloat16", loss_scale=64)
        tf.function(slope)()
        print(*figures())
        with tf_amp.mixed_precision_scope(loss_scale=tf_amp.StaticLossScale(8)):
            tf.function(slope)()
            print(*figures())
        tf_amp.disable()
        print(tf.GradientTape.gradient.__code__.co_filename.endswith("backprop.py"))
        """
    )
    assert lines == ["1 0 0", "64 1 0", "8 1 0", "True"]


def test_an_overflow_on_either_replica_skips_the_step_on_both():
    # Peers look at the first replica only: its weights stay, the others' become inf.
    lines = lines_of(
        REPLICAS
        + """
tf_amp.enable("float16", opt_level="O0", loss_scale="dynamic:initial=1024")
with strategy.scope():
    model = model_with(keras.optimizers.Adam(0.01))
    check(model, fit(model), EACH)

    model = model_with(keras.optimizers.SGD(0.01, momentum=0.9))
    @tf.function
    def step(inputs):
        def on_replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            slopes = tape.gradient(loss, model.trainable_variables)
            slopes, _ = tf.clip_by_global_norm(slopes, 1.0)
            model.optimizer.apply(slopes, model.trainable_variables)
        strategy.run(on_replica, args=(inputs,))
    def distributed(inputs, look):
        data = tf.data.Dataset.from_tensor_slices(np.concatenate(inputs)).batch(16)
        for each in strategy.experimental_distribute_dataset(data):
            step(each)
            look()
    with tf_amp.mixed_precision_scope(loss_scale="dynamic:initial=64"):
        check(model, distributed, EACH)
"""
    )
    assert lines == [
        "True True 512 1 1 2",
        "True True 256 1 2 3",
        "True True 32 1 1 2",
        "True True 16 1 2 3",
    ]


def test_optimizers_of_tf_keras_skip_too():
    lines = lines_of(
        REPLICAS
        + """
tf_amp.enable("float16", opt_level="O0", loss_scale="dynamic:initial=1024")
model = model_with(keras.optimizers.legacy.Adam(0.01))
check(model, fit(model), EACH[:1])
with strategy.scope():
    model = model_with(keras.optimizers.AdamW(0.01))
    check(model, fit(model), EACH[1:])
""",
        kit="tf_keras",
    )
    assert lines == [
        "True True 512 1 1 2",
        "True True 512 1 1 2",
    ]


def test_the_state_lives_where_most_of_the_variables_do_or_in_the_scope_of_a_device():
    lines = lines_of(
        """
        from tf_amp.training.scale_state import find_state

        cpu, = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)

        def place(loss_scale):
            variables = find_state(loss_scale).variables_by_kind.values()
            return {variable.device[-5:] for variable in variables}

        def weights_on(*devices):
            for device in devices:
                with tf.device(device):
                    yield tf.Variable(tf.ones([4, 4]))

        def steps(loss_scale, weights, wrap):
            weights = list(weights)
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            optimizer.build(weights)
            @wrap
            def step(x):
                with tf.GradientTape() as tape:
                    loss = sum(tf.reduce_mean(x @ w) for w in weights)
                optimizer.apply(tape.gradient(loss, weights), weights)
            with tf_amp.mixed_precision_scope(
                "float16", loss_scale=loss_scale, opt_level="O0"
            ):
                for factor in (1, math.inf, 1):
                    step(tf.constant(X * factor))
            slots = {slot.value.device[-5:] for slot in optimizer.variables[-1:]}
            state = tf_amp.loss_scale_state(loss_scale)
            traced = getattr(step, "experimental_get_tracing_count", lambda: 1)()
            print(*place(loss_scale), *slots, state.scale, traced)

        def scale():
            return tf_amp.DynamicLossScale(initial=4.0)

        steps(scale(), weights_on("CPU:0"), tf.function)
        steps(scale(), weights_on("CPU:0", "CPU:1", "CPU:1"), tf.function)
        steps(scale(), weights_on("CPU:1"), lambda function: function)

        def slope(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * x
            return tape.gradient(y, x)

        for device in ("CPU:0", "CPU:1"):
            for compute in (tf.function(slope), slope):
                loss_scale = scale()
                with tf_amp.mixed_precision_scope(
                    "float16", loss_scale=loss_scale, opt_level="O0"
                ):
                    with tf.device(device):
                        compute(tf.constant(2.0))
                print(*place(loss_scale))
        """
    )
    assert lines == [
        "CPU:0 CPU:0 2.0 1",
        "CPU:1 CPU:1 2.0 1",
        "CPU:1 CPU:1 2.0 1",
        *["CPU:0"] * 2,
        *["CPU:1"] * 2,
    ]


def test_a_statistical_scale_goes_by_the_largest_gradient_of_all_replicas():
    lines = lines_of(
        REPLICAS
        + """
spec = tf_amp.StatisticalLossScale(initial=4.0, deviations=0.0, decay=0.5)
with strategy.scope():
    weight = tf.Variable(1.0)
@tf.function
def step():
    def on_replica():
        place = tf.distribute.get_replica_context().replica_id_in_sync_group
        factor = tf.gather([2.0**-10, 1.2 * 2.0**-4], place)
        with tf.GradientTape() as tape:
            loss = factor * weight
        return tape.gradient(loss, weight)
    return strategy.run(on_replica)
with tf_amp.mixed_precision_scope("float16", loss_scale=spec, opt_level="O0"):
    for _ in range(3):
        step()
print(math.log2(tf_amp.loss_scale_state(spec).scale))
"""
    )
    # 16 - log2(1.2 * 2**-4), rounded down; of the mean of both it would be 20.
    assert lines == ["19.0"]


def test_gradients_of_replicas_are_seen_as_they_are_and_skipped_together_row_by_row():
    lines = lines_of(
        REPLICAS
        + """
def slopes(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ v) ** 2)
    return tape.gradient(loss, v)

def row_by_row(x):
    slopes_of_rows = tf.vectorized_map(lambda row: slopes(row[None]), x)
    return tf.reduce_mean(slopes_of_rows, 0)

def given(bad):
    batches = [np.full((2, 4), math.inf if i in bad else 1.0, "f4") for i in range(2)]
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(batches[context.replica_id_in_sync_group]))

def look(bad):
    compute = lambda x: strategy.run(lambda x: tf.function(slopes)(x), args=(x,))
    results = strategy.experimental_local_results(tf.function(compute)(given(bad)))
    return [result.numpy() for result in results]

with strategy.scope():
    v = tf.Variable(tf.ones([4, 1]))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([v])
    plain = look([])
    tf_amp.enable("float16", opt_level="O0", loss_scale="dynamic:initial=1024")
    print(same(plain, look([])), [bool(np.isfinite(r).all()) for r in look([1])])

    @tf.function
    def step(x):
        apply = lambda x: optimizer.apply([tf.function(row_by_row)(x)], [v])
        strategy.run(apply, args=(x,))
    # Replicas meet here, and count what they have taken before.
    step(given([]))
    for bad in ([0], [1], [0, 1], []):
        before, scale = [part.numpy() for part in parts(v)], figures()[0]
        step(given(bad))
        after = [part.numpy() for part in parts(v)]
        print(same(before, after), same(after[:1], after[1:]), scale / figures()[0])
"""
    )
    assert lines == ["True [True, False]", *["True True 2.0"] * 3, "False True 1.0"]
