"""Two replicas on one device: their steps are skipped together, their bits halved."""

from __future__ import annotations

import pytest

from tests.gpu.device import ON_THE_DEVICE, lines_of

pytestmark = ON_THE_DEVICE

# Both are on one card, between whose halves TensorFlow's collectives do not work: what
# they exchange goes to one device.
PROGRAM = """
split()
import keras
import keras_callbacks
import tf_amp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 16)).astype(np.float32)
Y = RNG.normal(size=(64, 4)).astype(np.float32)

def mirrored(word):
    devices = [FIRST, SECOND]
    if word == "tensorflow":
        exchange = tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=exchange)
    return keras_callbacks.mirrored_strategy(devices, all_reduce=word)

def build():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((16,)), *layers])
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    return model

def fit(model, x, y, seen=None, epochs=1):
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    note = lambda batch, logs: seen is not None and seen.append(model.get_weights())
    look = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    return model.fit(data, epochs=epochs, verbose=0, callbacks=[look])

def places(model):
    copies = [getattr(v, "_value", v).values for v in model.trainable_variables]
    assert all(np.array_equal(*map(np.array, pair)) for pair in copies)
    return sorted({c.device.rpartition("device:")[2] for pair in copies for c in pair})
"""
OVERFLOW = """
with tf_amp.mixed_precision_scope("float16", opt_level="O2",
                                  loss_scale="dynamic:initial=1024"):
    with mirrored(WORD).scope():
        model = build()
    # Of a batch of 32 the second replica has the last 16 rows.
    bad = X[:32].copy()
    bad[27] = np.inf
    seen = []
    fit(model, np.concatenate([X, bad, X]), np.concatenate([Y, Y[:32], Y]), seen)
    _, before, skipped, _, after = seen
    state = tf_amp.loss_scale_state()
    print(all(map(np.array_equal, before, skipped)))
    print(any(not np.array_equal(*pair) for pair in zip(before, after)))
    print(all(np.isfinite(w).all() for w in after))
    print(int(state.scale), state.skipped_steps)
    print(places(model) == [FIRST, SECOND])
"""
EXCHANGE = """
alone = build()
expected = fit(alone, X, Y, epochs=3).history["loss"]
strategy = mirrored(WORD)
with strategy.scope():
    model = build()
found = fit(model, X, Y, epochs=3).history["loss"]
print(np.allclose(found, expected, rtol=5e-3))
print(places(model) == [FIRST, SECOND])
(exchange,) = strategy.exchanges
print(exchange.tensors, exchange.after.bytes_moved < 0.51 * exchange.before.bytes_moved)
"""


def output_of(program: str, word: str) -> list[str]:
    return lines_of(f"{PROGRAM}\nWORD = {word!r}\n{program}")


@pytest.mark.parametrize("word", ["tensorflow", "bfloat16", "float16"])
def test_an_overflow_on_the_second_replica_skips_the_step_on_both(word: str) -> None:
    assert output_of(OVERFLOW, word) == ["True", "True", "True", "512 1", "True"]


@pytest.mark.parametrize("word", ["bfloat16", "float16"])
def test_gradients_travel_in_16_bits_and_train_as_one_device_does(word: str) -> None:
    assert output_of(EXCHANGE, word) == ["True", "True", "4 True"]
