"""What two replicas are put through; each section asserts what comes of it."""

# Adam's step is 1e-3 per weight and step, 6 steps; float32 sums in another order, and
# two halves of a batch averaged, are off by roundings; 16 bits by 2^-8 or 2^-11 of a
# gradient, which Adam turns into as much of a step, or more where gradients are small.
TRAINING = """
alone, one = build(), build("sgd")
losses = train(alone)
train(one, epochs=1)
for word, loss_off, weights_off in (
    ("float32", 2e-6, 1e-6), ("bfloat16", 2e-3, 6e-3), ("float16", 2e-4, 1e-3)
):
    # What travels, and how, is alike for both.
    if keras.__name__ == "tf_keras" and word != "float16":
        continue
    strategy = keras_callbacks.mirrored_strategy(all_reduce=word)
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    with strategy.scope():
        model, other = build(), build("sgd")
    # By `fit` and in a loop gradients come to the exchange, which alone knows the word.
    if word != "bfloat16":
        history = train(model)
        assert np.allclose(history, losses, rtol=loss_off)
        assert distance(alone, model) < weights_off
        assert alike(model.trainable_variables)
    if word == "bfloat16" or keras.__name__ == "tf_keras":
        loop(strategy, other, other.optimizer, (X, Y))
        assert distance(one, other) < weights_off
        assert alike(other.trainable_variables)
    assert len(strategy.exchanges) == (word != "float32")
assert str(*strategy.exchanges).splitlines() == [
    "4 gradients on 2 replicas, per step",
    "  before  ReductionToOneDevice float32: 4 collectives, 0.006 MB",
    "  after   fused float16: 1 collectives, 0.003 MB (50.1% of the bytes)",
]
"""

SPARSE = """
strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
IDS = np.arange(64).reshape(64, 1) % 8
def table_model():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(10, 4), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model
with strategy.scope():
    model = table_model()
one = table_model()
for each in (model, one):
    data = tf.data.Dataset.from_tensor_slices((IDS, Y)).batch(32)
    each.fit(data, epochs=2, verbose=0)
assert distance(model, one) < 1e-3
exchange, = strategy.exchanges
assert (exchange.tensors, exchange.left) == (2, 1)
assert str(exchange).endswith("\\n  1 more, sparse or not float32, as before")
"""

FOREIGN = """
model = build("sgd")
strategy = keras_callbacks.mirrored_strategy(all_reduce="float16")
with strategy.scope():
    optimizer = keras.optimizers.SGD()
try:
    loop(strategy, model, optimizer, (X, Y))
except Exception as error:
    assert all(word in str(error) for word in ("scope", "dense", "kernel")), error
else:
    raise AssertionError("it was trained")
"""

SAVED = """
import pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
with strategy.scope():
    model = build()
weights = folder / "latest.weights.h5"
callbacks = [
    keras_callbacks.AutoMixedPrecision(dtype="bfloat16", opt_level="O2", verbose=0),
    keras.callbacks.ModelCheckpoint(weights, save_weights_only=True),
]
data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)
model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
assert [path.name for path in folder.iterdir()] == ["latest.weights.h5"]
assert len(strategy.exchanges) == 1
assert any(row.is_low for plan in tf_amp.plans() for row in plan.decisions)
model.save(folder / "model.keras")
loaded, other = keras.models.load_model(folder / "model.keras"), build()
other.load_weights(weights)
assert type(loaded) is keras.Sequential
assert distance(model, loaded) == distance(model, other) == 0.0
assert {w.dtype.name for w in loaded.get_weights()} == {"float32"}
"""

# The infinite row is one of the first replica, then of the second. Both types take the
# same way to the exchange, so the second replica is tried with one of them.
OVERFLOW = """
tf_amp.enable("float16", opt_level="O0", loss_scale="dynamic:initial=1024")
for word, rows in (("bfloat16", [3]), ("float16", [3, 27])):
    scale, skips = 1024, 0
    strategy = keras_callbacks.mirrored_strategy(all_reduce=word)
    with strategy.scope():
        model = build()
        for row in rows:
            bad = X[:32].copy()
            bad[row] = math.inf
            x, y = np.concatenate([X, bad, X]), np.concatenate([Y, Y[:32], Y])
            seen = []
            look = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: seen.append(model.get_weights())
            )
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
            model.fit(data, verbose=0, callbacks=[look])
            _, before, skipped, _, after = seen
            assert all(map(np.array_equal, before, skipped))
            assert not all(map(np.array_equal, before, after))
            assert all(np.isfinite(w).all() for w in after)
            state = tf_amp.loss_scale_state()
            scale, skips = scale / 2, skips + 1
            assert (state.scale, state.skipped_steps) == (scale, skips)
    assert alike(model.trainable_variables) and len(strategy.exchanges) == 1
tf_amp.disable()
"""

# 2049 and 257 are whole numbers that the 16-bit types do not have.
OTHERS = """
for word in ("bfloat16", "float16"):
    strategy = keras_callbacks.mirrored_strategy(all_reduce=word)
    @tf.function
    def sums():
        def on_replica():
            context = tf.distribute.get_replica_context()
            one = tf.constant(2049.0)
            return (
                context.all_reduce("SUM", one),
                *context.all_reduce("MEAN", [one, tf.constant([257.0, 2.0])]),
                context.all_gather(tf.constant([5.0]), 0),
            )
        return strategy.run(on_replica)
    results = [strategy.experimental_local_results(r)[1].numpy() for r in sums()]
    expected = [4098.0, 2049.0, [257.0, 2.0], [5.0, 5.0]]
    assert [r.tolist() for r in results] == expected and not strategy.exchanges
"""

# At O3 all that may be in 16 bits is; what is exchanged has the same bits nonetheless.
REWRITTEN = """
def exchanged():
    strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
    with strategy.scope():
        variable = tf.Variable(tf.zeros([500]))
        optimizer = keras.optimizers.SGD(1.0)
    values = np.random.default_rng(5).normal(size=(2, 500)).astype(np.float32)
    @tf.function
    def step():
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.apply([tf.gather(values, replica)], [variable])
        strategy.run(on_replica)
    step()
    return variable.numpy(), len(strategy.exchanges)
plain, count = exchanged()
tf_amp.enable("float16", opt_level="O3", loss_scale="none")
rewritten, _ = exchanged()
tf_amp.disable()
assert np.array_equal(plain, rewritten) and np.any(plain) and count == 1
"""

EAGER = """
strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
with strategy.scope():
    variable = tf.Variable([[1.0, 2.0]])
    optimizer = keras.optimizers.SGD(0.5)
def on_replica():
    optimizer.apply([tf.constant([[1.0, -1.0]])], [variable])
strategy.run(on_replica)
assert variable.numpy().tolist() == [[0.0, 3.0]] and len(strategy.exchanges) == 1
"""

DISABLED = """
from tf_amp._tensorflow_private import workers as private
from tf_amp._tensorflow_private import installed
from tf_amp._tensorflow_private.graphs import CONVERT_TO_TFLITE
strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
with strategy.scope():
    model = build("sgd")
tf_amp.enable("bfloat16")
tf_amp.disable()
in_place = [hook.method for hook in installed()]
assert in_place[-3:] == ["set_model", "_do_run", CONVERT_TO_TFLITE.method], in_place
assert "_all_reduce" not in in_place
loop(strategy, model, model.optimizer, (X, Y))
assert private.KERAS_ALL_REDUCE in installed() and len(strategy.exchanges) == 1
"""

ARGUMENTS = """
make = keras_callbacks.mirrored_strategy
missing = "devices: there is no GPU:7; TensorFlow sees CPU:0, CPU:1."
refused(missing, make, ["GPU:7", "CPU:0"])
twice = "devices: received CPU:0, /device:CPU:1, /cpu:0, where CPU:0 occurs twice"
refused(twice, make, ["CPU:0", "/device:CPU:1", "/cpu:0"])
refused("received an empty list", make, [])
word = "all_reduce: received 'float12'; allowed are float32, "
refused(word, make, all_reduce="float12")
size = "mirrored_strategy: bucket_bytes=0; allowed are ints from 1"
refused(size, make, all_reduce="bfloat16", bucket_bytes=0)
devices = make(["cpu:1", "/cpu:0"]).extended.worker_devices
assert [device[-5:] for device in devices] == ["CPU:1", "CPU:0"]
"""

ONE_DEVICE = """
strategy = keras_callbacks.mirrored_strategy(["CPU:1"], all_reduce="float16")
with strategy.scope():
    model = build()
alone = build()
train(model), train(alone)
assert distance(model, alone) == 0.0 and strategy.exchanges == ()
"""

LATE = """
strategy = keras_callbacks.mirrored_strategy()
with strategy.scope():
    model = build()
train(model, epochs=1)
keras_callbacks.mirrored_strategy()
print("none before")
kernel, step = tf.Variable(tf.ones([3, 2]), name="kernel"), tf.Variable(0.0)
keras_callbacks.mirrored_strategy(["CPU:0", "CPU:1"])
"""
