"""Loops compute what they did before if products leave them, forward and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_amp
from grappler_pass.costs import CostModel, DeviceProfile
from tests.grappler_pass.fusions.rewriting import CASES, plans_without_loss
from tests.long import parameters

STEPS, ROWS, INPUTS, UNITS = 12, 2, 128, 96
KINDS: dict[str, Callable[[Any], Any]] = {
    "lstm": lambda of: of.LSTM(UNITS, return_sequences=True),
    "gru": lambda of: of.GRU(UNITS),
    "gru that resets before": lambda of: of.GRU(UNITS, reset_after=False),
    "rnn": lambda of: of.SimpleRNN(UNITS),
    "rnn without a bias": lambda of: of.SimpleRNN(UNITS, use_bias=False),
    "both ways": lambda of: of.Bidirectional(of.LSTM(UNITS, return_sequences=True)),
    "backwards": lambda of: of.GRU(UNITS, go_backwards=True, return_sequences=True),
    "with a state": lambda of: of.SimpleRNN(UNITS, return_state=True),
}
# Each is a form of one that is not among them.
VARIANTS = ("both ways", "gru that resets before", "rnn without a bias", "backwards")
RULES = "recurrent_products,loop_sums,loop_products"
# Sums of float32 products in another order.
TOLERANCE = 1e-5
# Of gradients through 36 steps, by casts by hand, too.
IN_16_BITS = 2.0**-5
random = np.random.default_rng(0)
DATA = random.normal(size=(ROWS, STEPS, INPUTS)).astype(np.float32)
MASK = np.arange(STEPS) < np.array([[STEPS], [5]])


def fused_in(compute: Callable[..., Any], *given: Any) -> Counter[str]:
    """Return how often each rule applies to a function that computes as before."""

    def outcomes() -> list[np.ndarray]:
        function = tf.function(compute, autograph=False)
        results = [function(*each) for each in given]
        return [np.asarray(each) for each in tf.nest.flatten(results)]

    plans = plans_without_loss(
        outcomes, TOLERANCE, fuse="recurrent_products,loop_sums,loop_products"
    )
    return Counter(fusion.rule for plan in plans for fusion in plan.fusions)


def products_moved(compute: Callable[..., Any], *given: Any) -> int:
    """Return how many products of inputs leave loops of such a function."""
    return fused_in(compute, *given)["recurrent_products"]


@pytest.mark.parametrize("kind", parameters(KINDS, VARIANTS))
@pytest.mark.parametrize("of", [keras.layers, tf_keras.layers], ids=["3", "2"])
def test_a_recurrent_layer_returns_the_same(kind: str, of: Any) -> None:
    layer = KINDS[kind](of)
    layer(DATA)
    weights = [random.normal(0.0, 0.1, w.shape) for w in layer.get_weights()]
    layer.set_weights(weights)

    def compute(x: tf.Tensor, mask: tf.Tensor) -> Any:
        open_sizes = tf.ensure_shape(x, (None, None, INPUTS))
        return layer(open_sizes), layer(x, mask=mask)

    assert products_moved(compute, (tf.constant(DATA), tf.constant(MASK))) >= 2


@pytest.mark.parametrize(("dtype", "moves"), [("bfloat16", True), ("float16", False)])
def test_a_product_leaves_its_loop_where_it_pays_in_the_faster_type(
    dtype: str, moves: bool
) -> None:
    # There float16 is slower than float32, in which 64 rows a step do not pay.
    models = {"CPU": CostModel(DeviceProfile.load("cpu-avx512-bf16"))}
    sizes = {"x": (35, 64, 512), "row": (64, 512), "product": (64, 2048)}
    plan = CASES["recurrent_products"](models=models, low_dtype=dtype, **sizes).plan
    rules = {fusion.rule for fusion in plan.fusions}
    assert ("recurrent_products" in rules) == moves


def test_a_sum_leaves_its_loop_where_casts_for_it_take_the_gain() -> None:
    models = {"CPU": CostModel(DeviceProfile.load("cpu-amx-bf16"))}
    sizes = dict.fromkeys(("x", "entered_x", "dz"), (64, 512))
    plan = CASES["loop_sums"](models=models, **sizes).plan
    assert [fusion.rule for fusion in plan.fusions] == ["loop_sums"]


def test_a_stateful_layer_goes_on_from_its_state() -> None:
    layer = keras.layers.LSTM(UNITS, stateful=True)
    layer(DATA)

    def compute(x: tf.Tensor) -> Any:
        return layer(x)

    def from_zeros(x: tf.Tensor) -> Any:
        for state in layer.states:
            state.assign(tf.zeros_like(state))
        return compute(x), compute(x)

    assert products_moved(from_zeros, (tf.constant(DATA),)) == 2


def gradients_of(layer: Any, data: Any = DATA) -> Callable[..., Sequence[tf.Tensor]]:
    """Return a function that returns a loss of a layer, and all gradients."""
    layer(data)

    def compute(x: tf.Tensor, mask: tf.Tensor | None = None) -> Sequence[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = layer(x) if mask is None else layer(x, mask=mask)
            loss = tf.reduce_sum(tf.square(result) + result)
        return [loss, *tape.gradient(loss, [x, *layer.trainable_variables])]

    return compute


@pytest.mark.parametrize("of", [keras.layers, tf_keras.layers], ids=["3", "2"])
def test_products_in_blocks_are_as_good_in_16_bits(of: Any) -> None:
    layer = of.LSTM(512, return_sequences=True)
    data = tf.constant(random.normal(size=(32, 36, 8)).astype(np.float32))
    compute = gradients_of(layer, data)

    def outcomes() -> list[np.ndarray]:
        return [np.asarray(each) for each in tf.function(compute)(data)]

    settings = {"fuse": "weight_blocks", "device_profile": "cpu-amx-bf16"}
    plans = plans_without_loss(outcomes, IN_16_BITS, **settings)
    assert {"weight_blocks"} == {f.rule for plan in plans for f in plan.fusions}


@pytest.mark.parametrize(
    "kind", parameters(sorted(KINDS.keys() - {"with a state"}), VARIANTS)
)
def test_gradients_of_a_recurrent_layer_are_the_same(kind: str) -> None:
    compute = gradients_of(KINDS[kind](keras.layers))

    def both(x: tf.Tensor, mask: tf.Tensor) -> Any:
        open_sizes = tf.ensure_shape(x, (None, None, INPUTS))
        return compute(open_sizes), compute(x, mask)

    found = fused_in(both, (tf.constant(DATA), tf.constant(MASK)))
    # Of inputs and of the state.
    assert found["loop_sums"] >= 4 and found["recurrent_products"] >= 2
    assert found["loop_products"] == found["recurrent_products"]


def test_gradients_of_a_layer_of_keras_2_are_the_same() -> None:
    compute = gradients_of(tf_keras.layers.LSTM(UNITS))
    # Of inputs, of the state and of the bias, in each graph of the way back.
    assert fused_in(compute, (tf.constant(DATA),))["loop_sums"] >= 3


def test_gradients_of_layers_behind_each_other_are_the_same() -> None:
    layers = [keras.layers.LSTM(UNITS, return_sequences=True) for _ in range(2)]
    compute = gradients_of(keras.Sequential([keras.Input((None, INPUTS)), *layers]))
    assert fused_in(compute, (tf.constant(DATA),)) == {
        "recurrent_products": 2,
        # Those of biases are among them.
        "loop_sums": 6,
        "loop_products": 2,
    }


def test_gradients_still_wait_for_what_is_written_between() -> None:
    layer, count = KINDS["lstm"](keras.layers), tf.Variable(0.0)
    layer(DATA)

    def compute(x: tf.Tensor) -> Sequence[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x)))
        with tf.control_dependencies([count.assign_add(loss)]):
            scale = tf.identity(2.0)
        return tape.gradient(loss, [x, *layer.trainable_variables], scale)

    assert fused_in(compute, (tf.constant(DATA),))["loop_products"] == 1


@pytest.mark.usefixtures("disabled_afterwards")
def test_gradients_in_16_bits_are_as_near_to_float32_as_before() -> None:
    compute = gradients_of(KINDS["lstm"](keras.layers))

    def gradients() -> list[np.ndarray]:
        results = tf.function(compute, autograph=False)(tf.constant(DATA))
        return [each.numpy() for each in results]

    def errors(fuse: str) -> np.ndarray:
        settings = {"device_profile": "cpu-avx512-bf16", "opt_level": "O2"}
        tf_amp.enable(dtype="bfloat16", tune="off", fuse=fuse, **settings)
        found = gradients()
        rules = {fusion.rule for fusion in tf_amp.plans()[-1].fusions}
        tf_amp.disable()
        assert ("loop_sums" in rules) == (fuse == "on")
        pairs = zip(found, exact, strict=True)
        return np.array([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])

    exact = gradients()
    before = errors("off")
    assert before.max() > 1e-4
    np.testing.assert_array_less(errors("on"), 1.5 * before)


def loop(
    rows: tf.Tensor,
    step: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    count: Any = STEPS,
    index: Callable[[tf.Tensor], tf.Tensor] = lambda t: t,
) -> tf.Tensor:
    """Return the last state of a loop over rows [steps, batch, inputs]."""
    items = tf.TensorArray(tf.float32, STEPS, clear_after_read=False).unstack(rows)
    state = tf.zeros((ROWS, UNITS))
    return tf.while_loop(
        lambda t, _: t < count,
        lambda t, value: (t + 1, step(items.read(index(t)), value)),
        [tf.constant(0), state],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, UNITS])],
    )[1]


ITEMS = tf.constant(DATA.transpose(1, 0, 2))
WEIGHTS = tf.constant(random.normal(size=(INPUTS, UNITS)).astype(np.float32))


def step_of(weights: tf.Tensor, **attrs: bool) -> Callable[..., tf.Tensor]:
    def step(row: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(row, weights, **attrs) + 0.5 * state)

    return step


def test_a_loop_may_end_early_or_run_no_step() -> None:
    def compute(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return loop(x, step_of(WEIGHTS), count=count)

    counts = [(ITEMS, tf.constant(count)) for count in (0, 3, STEPS)]
    assert products_moved(compute, *counts) == 1


def test_rows_may_be_read_in_any_order_and_again() -> None:
    def compute(x: tf.Tensor) -> tf.Tensor:
        return loop(x, step_of(WEIGHTS), index=lambda t: (7 * t + 3) % 5)

    assert products_moved(compute, (ITEMS,)) == 1


def test_no_steps_and_no_rows_come_out_as_before() -> None:
    def compute(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        open_rows = tf.ensure_shape(x, (None, None, INPUTS))
        state = tf.zeros((tf.shape(x)[1], UNITS))
        items = tf.TensorArray(tf.float32, tf.shape(x)[0]).unstack(open_rows)
        step = step_of(WEIGHTS)
        return tf.while_loop(
            lambda t, _: t < count,
            lambda t, value: (t + 1, step(items.read(t), value)),
            [tf.constant(0), state],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, UNITS])],
        )[1]

    def signed(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return compute(tf.reshape(x, tf.shape(x)), count)

    given = [(ITEMS[:0], tf.constant(0)), (ITEMS[:, :0], tf.constant(2))]
    assert products_moved(signed, *given, (ITEMS, tf.constant(STEPS))) >= 1


def test_weights_may_be_transposed_or_a_part_of_others() -> None:
    whole = tf.concat([WEIGHTS, WEIGHTS], 1)

    def compute(x: tf.Tensor) -> Sequence[tf.Tensor]:
        flipped = loop(x, step_of(tf.transpose(WEIGHTS), transpose_b=True))

        def step(row: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
            part = tf.split(whole, 2, 1)[1]
            return tf.tanh(tf.matmul(row, part) + 0.5 * state)

        return flipped, loop(x, step)

    assert products_moved(compute, (ITEMS,)) == 2


def writing_weights() -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function whose loop writes the weights that it multiplies by."""
    weights = tf.Variable(WEIGHTS)

    def compute(x: tf.Tensor) -> tf.Tensor:
        weights.assign(WEIGHTS)

        def step(row: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
            product = tf.matmul(row, weights)
            weights.assign(0.9 * weights)
            return tf.tanh(product + 0.5 * state)

        return loop(x, step)

    return compute


def test_weights_that_a_loop_writes_are_read_in_each_step() -> None:
    assert products_moved(writing_weights(), (ITEMS,)) == 0


def test_weights_are_read_after_a_write_in_front_of_the_loop() -> None:
    weights = tf.Variable(WEIGHTS)

    def compute(x: tf.Tensor) -> Sequence[tf.Tensor]:
        weights.assign(2.0 * WEIGHTS)

        def step(row: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
            return tf.tanh(tf.matmul(row, weights) + 0.5 * state)

        first = loop(x, step)
        weights.assign(-weights)
        return first, loop(x, step)

    assert products_moved(compute, *[(ITEMS,)] * 3) == 2


def test_loops_in_loops_and_in_branches_compute_the_same() -> None:
    weights = tf.Variable(WEIGHTS)

    def compute(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        def outer(i: tf.Tensor, total: tf.Tensor) -> Sequence[tf.Tensor]:
            def step(row: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
                return tf.tanh(tf.matmul(row, weights) + 0.5 * state)

            state = tf.cond(
                i % 2 == 0,
                lambda: loop(x + tf.cast(i, tf.float32), step),
                lambda: tf.zeros((ROWS, UNITS)),
            )
            weights.assign(0.9 * weights)
            return i + 1, total + state

        weights.assign(WEIGHTS)
        start = tf.constant(0), tf.zeros((ROWS, UNITS))
        shapes = tf.TensorShape([]), tf.TensorShape([None, UNITS])
        return tf.while_loop(
            lambda i, _: i < count, outer, start, shape_invariants=shapes
        )[1]

    assert products_moved(compute, (ITEMS, tf.constant(3))) == 1


def test_gradients_of_a_loop_that_ends_early_or_runs_no_step_are_the_same() -> None:
    weights, recurrent = tf.Variable(WEIGHTS), tf.Variable(0.1 * WEIGHTS[:UNITS])
    bias = tf.Variable(tf.ones(UNITS))

    def compute(x: tf.Tensor, count: tf.Tensor) -> Sequence[tf.Tensor]:
        def step(row: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
            product = tf.matmul(row, weights) + tf.matmul(state, recurrent)
            return tf.tanh(tf.nn.bias_add(product, bias))

        with tf.GradientTape() as tape:
            tape.watch(x)
            state = loop(x, step, count=count, index=lambda t: (7 * t + 3) % STEPS)
            loss = tf.reduce_sum(tf.square(state))
        given = [x, weights, recurrent, bias]
        gradients = tape.gradient(loss, given, unconnected_gradients="zero")
        return [loss, *map(tf.convert_to_tensor, gradients)]

    counts = [(ITEMS, tf.constant(count)) for count in (0, 1, 3, STEPS)]
    rules = {"recurrent_products": 1, "loop_sums": 2, "loop_products": 1}
    assert fused_in(compute, *counts) == rules


def gradients_of_inputs(
    weights: Any, *, index: Callable[[tf.Tensor], tf.Tensor] = lambda t: t
) -> Callable[..., tf.Tensor]:
    """Return a function that returns the gradient of a loop's rows."""

    def compute(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        rows = tf.ensure_shape(tf.reshape(x, tf.shape(x)), (None, None, INPUTS))

        def step(row: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
            return tf.tanh(tf.matmul(row, weights) + 0.5 * state)

        items = tf.TensorArray(tf.float32, tf.shape(x)[0], clear_after_read=False)
        items = items.unstack(rows)
        start = [tf.constant(0), tf.zeros((tf.shape(x)[1], UNITS))]
        state = tf.while_loop(
            lambda t, _: t < count,
            lambda t, value: (t + 1, step(items.read(index(t)), value)),
            start,
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, UNITS])],
        )[1]
        return tf.gradients(tf.reduce_sum(tf.square(state)), x)[0]

    return compute


def test_gradients_of_rows_that_are_read_again_are_added_up() -> None:
    compute = gradients_of_inputs(WEIGHTS, index=lambda t: (7 * t + 3) % 5)
    counts = [(ITEMS, tf.constant(count)) for count in (0, 1, STEPS)]
    assert fused_in(compute, *counts)["loop_products"] == 1


def test_gradients_of_no_steps_and_of_no_rows_come_out_as_before() -> None:
    given = [(ITEMS[:0], tf.constant(0)), (ITEMS[:, :0], tf.constant(2))]
    compute = gradients_of_inputs(tf.Variable(WEIGHTS))
    found = fused_in(compute, *given, (ITEMS, tf.constant(STEPS)))
    assert found["loop_products"] >= 1


def test_weights_are_those_of_the_loop_if_they_are_updated_behind_it() -> None:
    weights = tf.Variable(WEIGHTS)
    gradients = gradients_of_inputs(weights)

    def compute(x: tf.Tensor) -> Sequence[tf.Tensor]:
        weights.assign(WEIGHTS)
        first = gradients(x, tf.constant(STEPS))
        weights.assign_sub(0.5 * weights)
        return first, gradients(x, tf.constant(STEPS))

    assert fused_in(compute, *[(ITEMS,)] * 3)["loop_products"] == 2


def test_gradients_with_weights_that_a_loop_writes_are_computed_in_each_step() -> None:
    written = writing_weights()

    def compute(x: tf.Tensor) -> tf.Tensor:
        return tf.gradients(tf.reduce_sum(written(x)), x)[0]

    assert fused_in(compute, (ITEMS,))["loop_products"] == 0


def test_a_sum_that_begins_with_a_value_keeps_it() -> None:
    def compute(x: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        items = tf.TensorArray(tf.float32, STEPS).unstack(x)

        def body(t: tf.Tensor, total: tf.Tensor) -> Sequence[tf.Tensor]:
            row = items.read(t)
            product = tf.matmul(row, tf.cast(t, tf.float32) * row, transpose_a=True)
            return t + 1, total + product

        return tf.while_loop(lambda t, _: t < STEPS, body, [tf.constant(0), start])[1]

    start = tf.constant(random.normal(size=(INPUTS, INPUTS)).astype(np.float32))
    assert fused_in(compute, (ITEMS, start)) == {"loop_sums": 1}


def test_a_sum_that_its_loop_reads_stays() -> None:
    def compute(x: tf.Tensor) -> tf.Tensor:
        items = tf.TensorArray(tf.float32, STEPS).unstack(x)

        def body(t: tf.Tensor, total: tf.Tensor) -> Sequence[tf.Tensor]:
            row = items.read(t) + tf.reduce_sum(total)
            return t + 1, total + tf.matmul(row, row, transpose_a=True)

        start = tf.constant(0), tf.zeros((INPUTS, INPUTS))
        return tf.while_loop(lambda t, _: t < 3, body, start)[1]

    assert not fused_in(compute, (1e-3 * ITEMS,))
