"""Steps of functions that XLA compiles tell whether 16 bits are faster."""

from __future__ import annotations

import pathlib

import pytest

from tests.forking import run_tuned

# Predictions promise a gain that is in doubt. `slow` is the instance that is to lose:
# calls of it, or of a graph that calls it, wait.
PRELUDE = """
import time
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass.planning.prices import FusingPricer
from tf_amp.compare import alternation, call_sites

alternation._MOST_EXCESS = float("inf")
price, error = FusingPricer.price, 0.5

def believed(self, node, dtype):
    float32 = price(self, node, "float32")
    share = 1.0 if dtype == "float32" else 0.4
    return float32._replace(seconds=share * float32.seconds, error=error)

FusingPricer.price = believed
called, labels, slow, waits = call_sites.call_as, [], "mixed", 0.1

def waiting(callee, label, *args):
    labels.append(label)
    is_float32 = label == "float32" or not label and error > 1.0
    if is_float32 == (slow == "float32"):
        time.sleep(waits)
    return called(callee, label, *args)

call_sites.call_as = waiting
A = np.full([384, 384], 1 / 256, np.float32)
X = tf.constant(np.random.default_rng(0).normal(size=(384, 384)), tf.float32)

@tf.function(jit_compile=True)
def product(x):
    return (((x @ A) @ A) @ A) @ A

@tf.function
def calling(x):
    return 2.0 * product(x)

EXACT = {product: (((X @ A) @ A) @ A) @ A, calling: 2.0 * ((((X @ A) @ A) @ A) @ A)}

def is_exact(function, like=None):
    exact = EXACT[like or function]
    return bool(np.all(np.abs(function(X) - exact) <= 1e-5 * np.abs(exact).max()))
"""


def run(code: str, cache: pathlib.Path, **env: str) -> list[str]:
    """Return what a program prints."""
    return run_tuned(PRELUDE + code, cache, **env)


# Any two of what makes a case meet in one; by an error of 3 it begins in float32.
@pytest.mark.parametrize(
    ("function", "slow", "error"),
    [
        ("product", "mixed", 0.5),
        ("product", "float32", 3.0),
        ("calling", "mixed", 3.0),
        ("calling", "float32", 0.5),
    ],
)
def test_the_slow_instance_is_not_called_again_nor_in_the_next_process(
    function: str, slow: str, error: float, tmp_path: pathlib.Path
) -> None:
    code = f"""
slow, error = {slow!r}, {error}
tf_amp.enable(dtype="bfloat16")
began_exact = is_exact({function})
for _ in range(100):
    {function}(X)
print(began_exact, len(set(labels)) > 1)
print(len(set(labels[-20:])), is_exact({function}), len(tf_amp.plans()))
"""
    first, second = (run(code, tmp_path)[-2:] for _ in range(2))
    is_float32 = slow == "mixed"
    settled = f"1 {is_float32} {int(slow == 'float32')}"
    assert first == [f"{error > 1.0} True", settled]
    # What is known from the start has one instance.
    assert second == [f"{is_float32} False", settled]


@pytest.mark.parametrize("tune", ["off", "on"])
def test_prices_decide_without_tuning_and_where_the_caller_keeps_state(
    tune: str, tmp_path: pathlib.Path
) -> None:
    code = f"""
tf.random.set_seed(1)

@tf.function
def calling(x):
    return product(x + tf.random.normal([], seed=2))

tf_amp.enable(dtype="bfloat16", tune={tune!r})
for _ in range(30):
    ({tune!r} == "on" and calling or product)(X)
print(set(labels), len(tf_amp.plans()))
"""
    assert run(code, tmp_path)[-1] == "{''} 1"


def test_forward_and_backward_functions_are_compared(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
weight = tf.Variable(A)

@tf.function(jit_compile=True)
def product(x):
    return (((x @ weight) @ A) @ A) @ A

def gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(product(X) ** 2)
    return tape.gradient(loss, weight).numpy()

expected = gradient()
tf_amp.enable(dtype="bfloat16")
product = product._clone(None)
found = [gradient() for _ in range(100)]
distances = [np.abs(each - expected).max() / np.abs(expected).max() for each in found]
print(max(distances) < 0.03, 1e-4 < distances[0], distances[-1] < 1e-5)
""",
        tmp_path,
    )
    assert lines[-1] == "True True True"


def test_a_compiled_fit_is_compared_and_learns_the_same(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
import keras

waits = 0.0
data = np.random.default_rng(0).normal(size=(1920, 384)).astype(np.float32)

def fitted():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(384) for _ in range(3)])
    model.compile("sgd", "mse", jit_compile=True)
    found = model.fit(data, data, batch_size=64, epochs=3, verbose=0, shuffle=False)
    assert model.optimizer.iterations.numpy() == 90
    return np.array(found.history["loss"])

plain = fitted()
tf_amp.enable(dtype="bfloat16")
labels.clear()
found = fitted()
print(len(set(labels)) > 1, np.abs(found - plain).max() < 0.01 * plain.max())
""",
        tmp_path,
    )
    assert lines[-1] == "True True"


def test_a_model_exported_meanwhile_is_as_it_was_traced(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path / "model")
    lines = run(
        f"""
tf_amp.enable(dtype="bfloat16")
module = tf.Module()
module.call = tf.function(
    lambda x: 2.0 * product(x), input_signature=[tf.TensorSpec((384, 384))]
)
for _ in range(8):
    module.call(X)
print(sorted(set(labels)))
tf.saved_model.save(module, {folder!r})
tf_amp.disable()
restored = tf.saved_model.load({folder!r})
print(is_exact(restored.call, calling))
stored = open({folder!r} + "/saved_model.pb", "rb").read()
print([name for name in (b"tf_amp", b"bfloat16", b"__float32") if name in stored])
""",
        tmp_path,
    )
    assert lines[-3:] == ["['', 'float32']", "True", "[]"]
