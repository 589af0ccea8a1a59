"""Optimizers whose state is on the host; a second CPU stands for the accelerator."""

from __future__ import annotations

from tests.two_cpus import run_on_two

_BEFORE = """
import functools, os, tempfile
from keras import optimizers
from tf_amp.placement import offload_optimizer as told, offload_report
offload_optimizer = functools.partial(told, verbose=False)

X = np.random.default_rng(0).normal(size=(32, 16)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")

def train(model, epochs=1):
    with tf.device("CPU:1"):
        model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)

def fitted(optimizer, built=True):
    keras.utils.set_random_seed(1)
    with tf.device("CPU:1"):
        model = keras.Sequential([
            keras.layers.Dense(32, "relu", kernel_constraint="non_neg", name="first"),
            keras.layers.Dense(4, name="last")], name="model")
        if built:
            model.build((None, 16))
        model.compile(optimizer, "mse", jit_compile=False)
    train(model, epochs=2)
    return model

def bits(model):
    return [w.tobytes() for w in model.get_weights()]

def assert_same(plain, offloaded, name_of):
    '''Slots have the values and names of a plain optimizer's, and are on the host.'''
    for a, b in zip(plain.variables, offloaded.variables, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes(), a
        assert name_of(a) == name_of(b)
    for slot in offloaded.variables[2:]:
        plain = slot if isinstance(slot, tf.Variable) else slot.value
        assert plain.device.endswith("CPU:0"), slot

def reloaded(model):
    path = os.path.join(tempfile.mkdtemp(), "model.keras")
    model.save(path)
    return keras.models.load_model(path)

def weight_of(value):
    with tf.device("CPU:1"):
        return tf.Variable(value)
"""


def run(program: str) -> list[str]:
    return run_on_two(program, _BEFORE).lines()


def test_float32_transfers_leave_every_bit_and_slots_live_on_the_host() -> None:
    run(
        """
        kinds = {
            "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=1.0),
            "sgd": lambda: optimizers.SGD(0.01, momentum=0.9, use_ema=True),
            "rmsprop": lambda: optimizers.RMSprop(0.01, gradient_accumulation_steps=2),
            "adam": lambda: optimizers.Adam(0.01),
        }
        for name, make in kinds.items():
            plain, offloaded = make(), make()
            if name == "adamw":
                for each in (plain, offloaded):
                    each.exclude_from_weight_decay(var_names=["bias"])
            offloaded = offload_optimizer(offloaded)
            # One model is built by its first step.
            one, other = (fitted(o, built=name != "adam") for o in (plain, offloaded))
            assert bits(one) == bits(other), name
            assert_same(plain, offloaded, lambda v: v.path.partition("/")[2])
            assert all(w.value.device.endswith("CPU:1") for w in other.weights), name

        # Weights written by others count, and files are those of the plain one.
        start = [w * 0.5 for w in one.get_weights()]
        for model in (one, other):
            model.set_weights(start)
            train(model)
        assert bits(one) == bits(other)
        loaded = reloaded(other)
        assert type(loaded.optimizer) is optimizers.Adam and bits(loaded) == bits(one)
        assert len(loaded.optimizer.variables) == len(plain.variables)
        """
    )


def test_an_optimizer_of_tf_keras_does_the_same_on_the_host() -> None:
    run(
        """
        import tf_keras as keras
        from tf_keras import optimizers
        options = dict(weight_decay=0.1, clipnorm=1.0, use_ema=True)
        plain = optimizers.AdamW(0.01, **options)
        offloaded = offload_optimizer(optimizers.AdamW(0.01, **options))
        for each in (plain, offloaded):
            each.exclude_from_weight_decay(var_names=["^first"])
        one, other = fitted(plain), fitted(offloaded)
        assert bits(one) == bits(other)
        assert_same(plain, offloaded, lambda v: v.name)
        loaded = reloaded(other)
        assert type(loaded.optimizer) is optimizers.AdamW and bits(loaded) == bits(one)
        for each in (
            optimizers.legacy.Adam(),
            keras.mixed_precision.LossScaleOptimizer(optimizers.Adam()),
        ):
            refused("that wrap no other", offload_optimizer, each)
        """
    )


def test_weights_that_others_put_in_another_order_stay_in_it() -> None:
    run(
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
                weight = weight_of(tf.reshape([1.0, 2.0, 2.0, 1.5], shape))
                optimizer.apply([tf.zeros(shape)], [weight])
                written = order(weight.numpy().ravel())
                weight.assign(written.reshape(shape))
                optimizer.apply([tf.zeros(shape)], [weight])
                assert np.array_equal(weight.numpy().ravel(), written), (shape, name)
        """
    )


def test_writes_to_large_weights_are_seen_by_few_of_their_elements() -> None:
    run(
        """
        shape = [4096, 64]
        optimizer = offload_optimizer(optimizers.SGD(1.0))
        weight = weight_of(tf.zeros(shape))

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
            assert np.array_equal(weight.numpy(), written), write
        # Of the weight's size are reads, its copy and the update, and no whole numbers.
        ops = step.get_concrete_function().graph.get_operations()
        whole = [t for op in ops for t in op.outputs if t.dtype.is_integer]
        assert all((t.shape.num_elements() or 0) <= 1024 for t in whole)
        """
    )


def test_16_bit_transfers_round_and_the_host_keeps_float32_weights() -> None:
    (printed,) = run(
        """
        both = dict(down="bfloat16", up="bfloat16")
        optimizer = offload_optimizer(optimizers.SGD(1e-3), **both)
        weight = weight_of([1.0])
        for _ in range(8):
            optimizer.apply([tf.constant([1.0 + 2**-12])], [weight])
        # One step is below what bfloat16 holds next to 1; all of them are not.
        low = tf.cast(tf.constant(1 - 8e-3), tf.bfloat16)
        assert float(weight[0]) == float(tf.cast(low, tf.float32))
        report = offload_report(optimizer)
        assert (report.bytes_down, report.bytes_up) == (2, 2)
        resting = weight_of([1.0 + 2**-12])
        rounding = offload_optimizer(optimizers.SGD(1e-3), up="bfloat16")
        rounding.apply([tf.constant([1.0]), None], [tf.Variable([1.0]), resting])
        assert float(resting[0]) == 1.0 + 2**-12
        moving, written = weight_of([1.0]), weight_of([4.0])
        beside = offload_optimizer(optimizers.SGD(1e-3), up="bfloat16")
        for number in range(8):
            written.assign([4.0 + number])
            steps = [None, tf.constant([1.0]), tf.constant([0.0])]
            beside.apply(steps, [resting, moving, written])
        # Neither a weight that rests nor one that others write is reason to round it.
        assert float(moving[0]) == float(tf.cast(low, tf.float32))
        assert float(written[0]) == 11.0
        sparse = told(optimizers.Adam(0.1))
        table = weight_of(tf.ones([4, 2]))
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2]), tf.constant([4, 2]))
        sparse.apply([rows], [table])
        assert [round(float(v), 3) for v in table[:, 0]] == [1.0, 1.0, 0.9, 1.0]
        report = offload_report(sparse)
        assert (report.device_bytes_saved, report.bytes_down) == (64, 32)
        assert report.seconds_added > 0
        """
    )
    assert printed.startswith("optimizer on CPU:0: saves 6.104e-05 MiB on the device")


def test_a_step_that_overflows_is_skipped_and_updates_wait_for_no_other_layer() -> None:
    run(
        """
        def taken(values):
            optimizer = offload_optimizer(optimizers.SGD(0.5, momentum=0.5))
            weights = [weight_of(tf.eye(8)), weight_of(tf.eye(8))]
            @tf.function
            def step(x):
                with tf.device("CPU:1"), tf.GradientTape() as tape:
                    loss = tf.reduce_sum(x @ weights[0] @ weights[1])
                optimizer.apply(tape.gradient(loss, weights), weights)
            for value in values:
                step(tf.eye(8) * value)
            return weights[0].numpy(), int(optimizer.iterations), step
        weight, _, step = taken([0.5])
        graph = step.get_concrete_function(tf.eye(8)).graph
        assert not any(op.type == "IdentityN" for op in graph.get_operations())
        with tf_amp.mixed_precision_scope("float16", loss_scale=64.0, opt_level="O2"):
            skipped, count, _ = taken([0.5, 1e30])
        assert np.array_equal(weight, skipped) and count == 1
        """
    )


def test_what_cannot_be_offloaded_is_refused() -> None:
    run(
        """
        Adam, of_keras_3 = optimizers.Adam, "allowed are optimizers of Keras 3"
        built = Adam()
        built.build([keras.Variable(1.0)])
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            mirrored = tf.Variable(1.0)
        double = tf.Variable(1.0, dtype="float64")
        seen = "device: there is no GPU:5; TensorFlow sees CPU:0, CPU:1."
        refused(seen, told, Adam(), "GPU:5")
        down = "down: received 'int8'; allowed are float32,"
        refused(down, told, Adam(), down="int8")
        wrapper, old = optimizers.LossScaleOptimizer(Adam()), tf.compat.v1.train
        refused(f"LossScaleOptimizer; {of_keras_3}", told, wrapper)
        refused(f"AdamOptimizer; {of_keras_3}", told, old.AdamOptimizer())
        again = "optimizer: received one that is offloaded already."
        refused(again, told, offload_optimizer(Adam()))
        refused("whose slots exist already", told, built)
        refused("not offloaded or not built yet", offload_report, built)
        for variable, words in (
            (double, "of type float64; allowed is float32"),
            # Outside of the strategy that it is made by.
            (mirrored, "variables of a tf.distribute strategy; allowed is one device"),
        ):
            refused(words, offload_optimizer(Adam()).build, [variable])
        """
    )
