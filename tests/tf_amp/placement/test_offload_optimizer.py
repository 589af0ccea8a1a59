"""Optimizers whose state is on the host; a second CPU stands for the accelerator."""

from __future__ import annotations

import textwrap

from tests.forking import run_forked

_TWO = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, numpy as np
from keras import optimizers
from tf_amp import ConfigError
from tf_amp.placement import offload_optimizer as told, offload_report
import functools
offload_optimizer = functools.partial(told, verbose=False)

X = np.random.default_rng(0).normal(size=(32, 16)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")

def fitted(optimizer, epochs=2, built=True):
    keras.utils.set_random_seed(1)
    with tf.device("CPU:1"):
        model = keras.Sequential([
            keras.layers.Dense(32, "relu", kernel_constraint="non_neg", name="first"),
            keras.layers.Dense(4, name="last")], name="model")
        if built:
            model.build((None, 16))
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model

def bits(model):
    return [w.tobytes() for w in model.get_weights()]
"""


def _output(program: str) -> list[str]:
    return run_forked(_TWO + textwrap.dedent(program)).lines()


def test_float32_transfers_leave_every_bit_and_slots_live_on_the_host() -> None:
    lines = _output(
        """
        import os, tempfile
        kinds = {
            "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=1.0),
            "sgd": lambda: optimizers.SGD(0.01, momentum=0.9, use_ema=True),
            "rmsprop": lambda: optimizers.RMSprop(0.01, gradient_accumulation_steps=2),
            "adam": lambda: optimizers.Adam(0.01),
        }
        for name, make in kinds.items():
            optimizer = make()
            if name == "adamw":
                optimizer.exclude_from_weight_decay(var_names=["bias"])
            offloaded = offload_optimizer(optimizer)
            plain = make()
            if name == "adamw":
                plain.exclude_from_weight_decay(var_names=["bias"])
            # One model is built by its first step.
            one, other = (fitted(o, built=name != "adam") for o in (plain, offloaded))
            places = {v.value.device[-5:] for v in offloaded.variables[2:]}
            paths = [v.path.partition("/")[2] for v in plain.variables] == [
                v.path.partition("/")[2] for v in offloaded.variables]
            same = all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(
                plain.variables, offloaded.variables, strict=True))
            weights = {w.value.device[-5:] for w in other.weights}
            print(name, bits(one) == bits(other), same and paths, places, weights)

        # Weights written by others count, and files are those of the plain one.
        start = [w * 0.5 for w in one.get_weights()]
        for model in (one, other):
            model.set_weights(start)
            with tf.device("CPU:1"):
                model.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        print(bits(one) == bits(other))
        path = os.path.join(tempfile.mkdtemp(), "model.keras")
        other.save(path)
        loaded = keras.models.load_model(path)
        print(type(loaded.optimizer) is optimizers.Adam, bits(loaded) == bits(one))
        print(len(loaded.optimizer.variables) == len(plain.variables))
        """
    )
    assert lines == [
        *(
            f"{name} True True {{'CPU:0'}} {{'CPU:1'}}"
            for name in ("adamw", "sgd", "rmsprop", "adam")
        ),
        *("True", "True True", "True"),
    ]


def test_an_optimizer_of_tf_keras_does_the_same_on_the_host() -> None:
    lines = _output(
        """
        import os, tempfile
        import tf_keras as keras
        from tf_keras import optimizers
        options = dict(weight_decay=0.1, clipnorm=1.0, use_ema=True)
        plain = optimizers.AdamW(0.01, **options)
        offloaded = offload_optimizer(optimizers.AdamW(0.01, **options))
        for each in (plain, offloaded):
            each.exclude_from_weight_decay(var_names=["^first"])
        one, other = fitted(plain), fitted(offloaded)
        places = {v.device[-5:] for v in offloaded.variables[2:]}
        same = all(
            a.name == b.name and a.numpy().tobytes() == b.numpy().tobytes()
            for a, b in zip(plain.variables, offloaded.variables, strict=True))
        print(bits(one) == bits(other), same, places)
        path = os.path.join(tempfile.mkdtemp(), "model.keras")
        other.save(path)
        loaded = keras.models.load_model(path)
        print(type(loaded.optimizer) is optimizers.AdamW, bits(loaded) == bits(one))
        for each in (
            optimizers.legacy.Adam(),
            keras.mixed_precision.LossScaleOptimizer(optimizers.Adam()),
        ):
            try:
                offload_optimizer(each)
            except ConfigError as error:
                print("that wrap no other" in str(error))
        """
    )
    assert lines == [
        "True True {'CPU:0'}",
        "True True",
        "True",
        "True",
    ]


def test_weights_that_others_put_in_another_order_stay_in_it() -> None:
    lines = _output(
        """
        orders = {
            "two": lambda w: w[[1, 0, 2, 3]],
            "mirrored": lambda w: w[::-1],
            "rows": lambda w: w.reshape(2, 2)[::-1].ravel(),
            "transposed": lambda w: w.reshape(2, 2).T.ravel(),
        }
        for shape in ([4], [2, 2]):
            for name, order in orders.items():
                optimizer = offload_optimizer(optimizers.SGD(1.0))
                with tf.device("CPU:1"):
                    weight = tf.Variable(tf.reshape([1.0, 2.0, 2.0, 1.5], shape))
                optimizer.apply([tf.zeros(shape)], [weight])
                written = order(weight.numpy().ravel())
                weight.assign(written.reshape(shape))
                optimizer.apply([tf.zeros(shape)], [weight])
                print(name, np.array_equal(weight.numpy().ravel(), written))
        """
    )
    assert lines == 2 * ["two True", "mirrored True", "rows True", "transposed True"]


def test_writes_to_large_weights_are_seen_by_few_of_their_elements() -> None:
    lines = _output(
        """
        shape = [4096, 64]
        optimizer = offload_optimizer(optimizers.SGD(1.0))
        with tf.device("CPU:1"):
            weight = tf.Variable(tf.zeros(shape))

        @tf.function
        def step():
            optimizer.apply([tf.zeros(shape)], [weight])

        @tf.function
        def halved():
            weight.assign(weight + 0.5)

        for write in (
            lambda: weight.assign(tf.ones(shape)),
            lambda: weight.scatter_update(tf.IndexedSlices([[7.0] * 64], [4095])),
            lambda: weight[17, 3].assign(9.0),
            halved,
        ):
            step()
            write()
            written = weight.numpy()
            step()
            print(np.array_equal(weight.numpy(), written))
        # Of the weight's size are reads, its copy and the update, and no whole numbers.
        ops = step.get_concrete_function().graph.get_operations()
        whole = [t for op in ops for t in op.outputs if t.dtype.is_integer]
        print([t for t in whole if (t.shape.num_elements() or 0) > 1024])
        """
    )
    assert lines == ["True"] * 4 + ["[]"]


def test_16_bit_transfers_round_and_the_host_keeps_float32_weights() -> None:
    lines = _output(
        """
        optimizer = offload_optimizer(
            optimizers.SGD(1e-3), down="bfloat16", up="bfloat16")
        with tf.device("CPU:1"):
            weight = tf.Variable([1.0])
        for _ in range(8):
            optimizer.apply([tf.constant([1.0 + 2**-12])], [weight])
        # One step is below what bfloat16 holds next to 1; all of them are not.
        print(float(weight[0]) == float(tf.cast(tf.cast(
            tf.constant(1 - 8e-3), tf.bfloat16), tf.float32)))
        print(offload_report(optimizer).bytes_down, offload_report(optimizer).bytes_up)
        with tf.device("CPU:1"):
            resting = tf.Variable([1.0 + 2**-12])
        rounding = offload_optimizer(optimizers.SGD(1e-3), up="bfloat16")
        rounding.apply([tf.constant([1.0]), None], [tf.Variable([1.0]), resting])
        print(float(resting[0]) == 1.0 + 2**-12)
        with tf.device("CPU:1"):
            moving, written = tf.Variable([1.0]), tf.Variable([4.0])
        beside = offload_optimizer(optimizers.SGD(1e-3), up="bfloat16")
        for number in range(8):
            written.assign([4.0 + number])
            steps = [None, tf.constant([1.0]), tf.constant([0.0])]
            beside.apply(steps, [resting, moving, written])
        # Neither a weight that rests nor one that others write is reason to round it.
        print(float(moving[0]) == float(tf.cast(tf.cast(
            tf.constant(1 - 8e-3), tf.bfloat16), tf.float32)), float(written[0]))
        sparse = told(optimizers.Adam(0.1))
        with tf.device("CPU:1"):
            table = tf.Variable(tf.ones([4, 2]))
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2]), tf.constant([4, 2]))
        sparse.apply([rows], [table])
        print([round(float(v), 3) for v in table[:, 0]])
        report = offload_report(sparse)
        print(report.device_bytes_saved, report.bytes_down, report.seconds_added > 0)
        """
    )
    told = lines.pop(4)
    assert told.startswith("optimizer on CPU:0: saves 6.104e-05 MiB on the device")
    assert lines == [
        "True",
        "2 2",
        "True",
        "True 11.0",
        "[1.0, 1.0, 0.9, 1.0]",
        "64 32 True",
    ]


def test_a_step_that_overflows_is_skipped_and_updates_wait_for_no_other_layer() -> None:
    lines = _output(
        """
        import tf_amp
        def taken(values):
            optimizer = offload_optimizer(optimizers.SGD(0.5, momentum=0.5))
            with tf.device("CPU:1"):
                weights = [tf.Variable(tf.eye(8)), tf.Variable(tf.eye(8))]
            @tf.function
            def step(x):
                with tf.device("CPU:1"), tf.GradientTape() as tape:
                    loss = tf.reduce_sum(x @ weights[0] @ weights[1])
                optimizer.apply(tape.gradient(loss, weights), weights)
            for value in values:
                step(tf.eye(8) * value)
            return weights[0].numpy(), int(optimizer.iterations), step
        w, count, step = taken([0.5])
        graph = step.get_concrete_function(tf.eye(8)).graph
        print(sum(op.type == "IdentityN" for op in graph.get_operations()))
        with tf_amp.mixed_precision_scope(
                "float16", loss_scale=64.0, opt_level="O2"):
            skipped, count, _ = taken([0.5, 1e30])
        print(np.array_equal(w, skipped), count)
        """
    )
    assert lines == ["0", "True 1"]


def test_what_cannot_be_offloaded_is_refused() -> None:
    lines = _output(
        """
        def refused(*args, **kwargs):
            try:
                offload_optimizer(*args, **kwargs)
            except ConfigError as error:
                print(error)
        refused(optimizers.Adam(), "GPU:5")
        refused(optimizers.Adam(), down="int8")
        refused(optimizers.LossScaleOptimizer(optimizers.Adam()))
        refused(tf.compat.v1.train.AdamOptimizer())
        refused(offload_optimizer(optimizers.Adam()))
        built = optimizers.Adam()
        built.build([keras.Variable(1.0)])
        refused(built)
        try:
            offload_report(built)
        except ConfigError as error:
            print(error)
        try:
            double = tf.Variable(1.0, dtype="float64")
            offload_optimizer(optimizers.Adam()).build([double])
        except ConfigError as error:
            print(error)
        try:
            with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
                mirrored = tf.Variable(1.0)
            # Outside of the strategy that it is made by.
            offload_optimizer(optimizers.Adam()).build([mirrored])
        except ConfigError as error:
            print(error)
        """
    )
    assert lines[0] == "device: there is no GPU:5; TensorFlow sees CPU:0, CPU:1."
    assert lines[1].startswith("down: received 'int8'; allowed are float32,")
    assert "LossScaleOptimizer; allowed are optimizers of Keras 3" in lines[2]
    assert "AdamOptimizer; allowed are optimizers of Keras 3" in lines[3]
    assert lines[4] == "optimizer: received one that is offloaded already."
    assert "whose slots exist already" in lines[5]
    assert "not offloaded or not built yet" in lines[6]
    assert "of type float64; allowed is float32" in lines[7]
    assert "variables of a tf.distribute strategy; allowed is one device" in lines[8]
