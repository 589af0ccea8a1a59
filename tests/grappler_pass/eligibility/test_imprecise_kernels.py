"""Which 16-bit kernels are off by more than rounding their results would be."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.eligibility.known_wrong import is_imprecise

UNARY = (
    "Elu Erf Erfc Exp Expm1 Log Log1p LogSoftmax Reciprocal Rsqrt Selu Sigmoid Softmax "
    "Softplus Softsign Sqrt Square Tanh"
).split()
EPSILONS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# A rounding of the result and one on the way to it.
WORST = 4.0

STEPS, ROWS, UNITS = 100, 4, 64


def states_of_kernel(
    inputs: np.ndarray, weights: np.ndarray, dtype: tf.DType
) -> np.ndarray:
    """Return the hidden states that TensorFlow's kernel computes in a type."""
    none, state = np.zeros(UNITS), np.zeros((ROWS, UNITS))
    given = {
        "x": inputs,
        "cs_prev": state,
        "h_prev": state,
        "w": weights,
        "wci": none,
        "wcf": none,
        "wco": none,
        "b": np.zeros(4 * UNITS),
    }
    kernel = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.constant(STEPS, tf.int64),
        cell_clip=-1.0,
        **{name: tf.cast(value, dtype) for name, value in given.items()},
    )
    return tf.cast(kernel.h, tf.float32).numpy()


def states_by_hand(inputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return them with products of float16 operands, and all else in float32."""
    hidden = state = np.zeros((ROWS, UNITS), np.float32)
    weights = weights.astype(np.float16).astype(np.float32)
    states = []
    for x in inputs:
        operand = np.concatenate([x, hidden], axis=1).astype(np.float16)
        gates = operand.astype(np.float32) @ weights
        let_in, new, kept, let_out = np.split(gates, 4, axis=1)
        state = sigmoid(kept + 1.0) * state + sigmoid(let_in) * np.tanh(new)
        hidden = sigmoid(let_out) * np.tanh(state)
        states.append(hidden)
    return np.array(states)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function of numbers."""
    return 1.0 / (1.0 + np.exp(-x))


def test_the_kernel_is_off_by_more_than_three_times_the_error_by_hand() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(STEPS, ROWS, UNITS)).astype(np.float32)
    weights = rng.normal(0.0, 0.1, (2 * UNITS, 4 * UNITS)).astype(np.float32)
    exact = states_of_kernel(inputs, weights, tf.float32)
    by_hand = np.linalg.norm(states_by_hand(inputs, weights) - exact)
    assert 0.0 < by_hand < 0.001 * np.linalg.norm(exact)
    kernel = states_of_kernel(inputs, weights, tf.float16)
    assert np.linalg.norm(kernel - exact) > 3.0 * by_hand


@pytest.mark.parametrize("op", UNARY)
def test_a_kernel_rounds_its_result_or_is_known_for_doing_worse(op: str) -> None:
    worst = max(roundings_off(op, low_dtype) for low_dtype in EPSILONS)
    assert is_imprecise(op, "CPU") == (worst > WORST)


def roundings_off(op: str, low_dtype: str) -> float:
    """Return by how many roundings a kernel's worst result is off, relative to it."""
    values = np.geomspace(1e-2, 10.0, 4000)
    low = tf.cast(tf.concat([-values, values], 0), low_dtype)
    kernel = getattr(tf.raw_ops, op)
    (name,) = inspect.signature(kernel).parameters.keys() - {"name"}
    expected = kernel(**{name: tf.cast(low, tf.float32)}).numpy()
    found = tf.cast(kernel(**{name: low}), tf.float32).numpy()
    is_held = np.isfinite(expected) & (np.abs(expected) > 2.0**-14)
    is_held &= np.abs(expected) < 65504.0
    expected, found = expected[is_held], found[is_held]
    return np.max(np.abs(found / expected - 1)) / EPSILONS[low_dtype]
