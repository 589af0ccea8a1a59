"""Models of Keras 3 train and predict with fusions as they do without."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.grappler_pass.fusions.rewriting import plans_without_loss
from tests.long import parameters

layers = keras.layers
DRAWN = {"gamma_initializer": "normal", "beta_initializer": "normal"}


class Model(NamedTuple):
    """A model, and what is fused of it.

    Attributes:
      fuse: rules.
      shape: of one input.
      layers: makes them.
      tolerance: of all results, in terms of the largest.
      fusions: of the last rule, in all plans together at least.
      optimizer: makes it.
    """

    fuse: str
    shape: tuple[int, ...]
    layers: Callable[[], Sequence[keras.Layer]]
    tolerance: float
    fusions: int
    optimizer: Callable[[], Any] = keras.optimizers.SGD


def convolutions() -> Sequence[keras.Layer]:
    return (
        layers.Conv2D(32, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.DepthwiseConv2D(3),
        layers.BatchNormalization(center=False),
        layers.Flatten(),
        layers.Dense(8),
        layers.BatchNormalization(scale=False),
    )


def biased_convolutions() -> Sequence[keras.Layer]:
    return (
        layers.Conv2D(32, 3, bias_initializer=keras.initializers.Constant(3.0)),
        layers.BatchNormalization(momentum=0.5),
        layers.Activation("relu"),
        layers.Conv2D(32, 3, bias_initializer="normal"),
        layers.BatchNormalization(momentum=0.5),
        layers.GlobalAveragePooling2D(),
        layers.Dense(4),
    )


def tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    return keras.activations.gelu(x, approximate=True)


def activated(activation: object) -> Model:
    def dense() -> Sequence[keras.Layer]:
        return (layers.Dense(512, activation, bias_initializer="normal"),)

    return Model("flat_activations", (16, 8, 32), dense, 2e-6, 1)


def normalized(shape: tuple[int, ...], fusions: int, *options: dict) -> Model:
    def norms() -> Sequence[keras.Layer]:
        return [layers.LayerNormalization(**DRAWN, **each) for each in options]

    return Model("layer_norms", shape, norms, 5e-6, fusions)


class Attention(keras.Layer):
    """Rows look at each other."""

    def __init__(self) -> None:
        super().__init__()
        # Without dropout Keras writes one Einsum.
        self.inner = layers.MultiHeadAttention(4, 16, dropout=0.1)

    def call(self, rows: tf.Tensor) -> tf.Tensor:
        return self.inner(rows, rows)


class Transposed(keras.Layer):
    """Multiplies images by one and transposes, whichever is read how."""

    def __init__(self, *, transpose_a: bool, transpose_b: bool) -> None:
        super().__init__()
        self.how = {"transpose_a": transpose_a, "transpose_b": transpose_b}

    def build(self, shape: tuple[int, ...]) -> None:
        self.image = self.add_weight(shape=(1, *shape[1:]), initializer="normal")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        product = tf.matmul(x, self.image, **self.how)
        # TensorFlow folds the transpose into a product that follows it.
        return tf.tanh(tf.transpose(product, (0, 1, 3, 2)))


def transposed() -> Sequence[keras.Layer]:
    each = (False, True)
    return [Transposed(transpose_a=a, transpose_b=b) for a in each for b in each]


MODELS = {
    "channels": Model("channel_scales", (32, 32, 3), convolutions, 2e-6, 2),
    "relu": activated("relu"),
    "gelu": activated("gelu"),
    "tanh_gelu": activated(tanh_gelu),
    "rows": normalized((4096,), 1, {}),
    "steps": normalized((64, 256), 1, {"epsilon": 1e-12}),
    "images": normalized((8, 8, 256), 1, {}),
    "others": normalized(
        (8, 8, 256), 0, {"axis": (2, 3)}, {"center": False}, {"scale": False}
    ),
    "attention": Model(
        "transposed_products", (128, 64), lambda: [Attention()], 2e-6, 2
    ),
    "heads": Model("flat_activations", (128, 64), lambda: [Attention()], 2e-6, 4),
    "einsum": Model(
        "flat_activations",
        (8, 32),
        lambda: [
            layers.EinsumDense("abc,cd->abd", (8, 512), "relu", bias_axes="d"),
            layers.EinsumDense("abd,def->abef", (8, 4, 64), bias_axes="ef"),
        ],
        2e-6,
        2,
    ),
    "transposed": Model("transposed_products", (3, 64, 64), transposed, 2e-6, 8),
    "biases": Model(
        "batch_statistics,normalized_biases",
        (16, 16, 3),
        biased_convolutions,
        # Up to 5e-5 by oneDNN's kernels; up to 2e-4 by Eigen's.
        3e-4,
        2,
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    ),
}
# Of each of these rules there is another one.
VARIANTS = ("einsum", "others", "rows", "steps", "tanh_gelu", "transposed")


@pytest.mark.parametrize("name", parameters(MODELS, VARIANTS))
def test_keras_predicts_the_same_and_trains_as_before(name: str) -> None:
    given = MODELS[name]
    random = np.random.default_rng(0)
    data = random.normal(1.0, size=(64, *given.shape)).astype(np.float32)

    def outcomes() -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        made = [keras.Input(given.shape), *given.layers(), layers.Dense(4)]
        model = keras.Sequential(made)
        model.compile(given.optimizer(), "mse")
        target = np.random.default_rng(2).normal(size=(64, *model.output_shape[1:]))
        model.fit(data, target, batch_size=32, verbose=0, shuffle=False)
        found = [model.predict(part, verbose=0) for part in (data, data[:3])]
        # Weights are not folded once and for all.
        model.set_weights([2.0 * each for each in model.get_weights()])
        return [*found, model.predict(data, verbose=0), *model.get_weights()]

    plans = plans_without_loss(outcomes, given.tolerance, fuse=given.fuse)
    rules = collections.Counter(each.rule for plan in plans for each in plan.fusions)
    found = rules[given.fuse.rpartition(",")[2]]
    assert found >= given.fusions and bool(found) == bool(given.fusions)
    if name == "channels":
        assert len(plans_without_loss(outcomes, 0.0, fuse="off")) == len(plans)


def test_gradients_of_projections_sum_up_examples_within_products() -> None:
    keras.utils.set_random_seed(1)
    layer = layers.EinsumDense("abc,cd->abd", (32, 256), bias_axes="d")
    data = np.random.default_rng(0).normal(1.0, size=(24, 32, 128)).astype(np.float32)
    layer.build(data.shape)

    def outcomes() -> list[np.ndarray]:
        @tf.function(autograph=False)
        def gradients(x: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(layer(x)))
            return tape.gradient(loss, layer.trainable_variables)

        return [each.numpy() for each in gradients(data)]

    plans = plans_without_loss(outcomes, 2e-6, fuse="summed_products")
    assert [each.rule for each in plans[-1].fusions] == ["summed_products"]


@pytest.mark.usefixtures("disabled_afterwards")
def test_examples_that_are_one_product_round_less_than_three_times_as_much() -> None:
    random = np.random.default_rng(0)
    # Of one sign, so that roundings of many products average out.
    x, y = (random.uniform(1.0, 2.0, (32, 16, 64)).astype(np.float32) for _ in "xy")
    expected = np.einsum("bkm,bkn->mn", x.astype(np.float64), y)

    def error(fuse: str) -> float:
        options = {"device_profile": "cpu-avx512-bf16", "opt_level": "O2"}
        tf_amp.enable("bfloat16", tune="off", fuse=fuse, **options)

        @tf.function(autograph=False)
        def total(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(tf.matmul(x, y, transpose_a=True), 0)

        found = total(x, y).numpy() - expected
        assert any(row.is_low for row in tf_amp.plans()[-1].decisions)
        return float(np.linalg.norm(found))

    assert 1.0 < error("summed_products") / error("off") < 3.0


def test_networks_with_shortcuts_predict_the_same() -> None:
    keras.utils.set_random_seed(0)
    given = output = keras.Input((32, 32, 16))
    for _ in range(2):
        inner = layers.Conv2D(16, 3, padding="same")(output)
        inner = layers.BatchNormalization()(inner)
        output = layers.ReLU()(layers.Add()([output, inner]))
    model = keras.Model(given, output)
    random = np.random.default_rng(0)
    shapes = [each.shape for each in model.get_weights()]
    model.set_weights([np.abs(random.normal(0.2, 0.1, shape)) for shape in shapes])
    data = random.normal(size=(64, 32, 32, 16)).astype(np.float32)

    def outcomes() -> list[np.ndarray]:
        return [tf.function(lambda x: model(x, training=False))(data).numpy()]

    plans = plans_without_loss(outcomes, 2e-6, fuse="channel_scales")
    assert [each.rule for each in plans[-1].fusions] == ["channel_scales"] * 2


def fusions_of(tolerance: float, *made: keras.Layer) -> collections.Counter[str]:
    """Return how often a model is fused by each rule when it predicts the same."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((128, 512)), *made, layers.Dense(4)])
    data = np.random.default_rng(0).normal(1.0, size=(16, 128, 512)).astype(np.float32)

    def outcomes() -> list[np.ndarray]:
        model.predict_function = None
        return [model.predict(data, verbose=0)]

    plans = plans_without_loss(outcomes, tolerance)
    return collections.Counter(f.rule for plan in plans for f in plan.fusions)


def test_a_gelu_and_the_normalizations_around_it_are_all_fused() -> None:
    norms = layers.LayerNormalization(), layers.LayerNormalization()
    found = fusions_of(1e-5, norms[0], layers.Dense(512, "gelu"), norms[1])
    assert found == {"flat_activations": 2, "layer_norms": 2}


@pytest.mark.skipif(not hasattr(layers, "RMSNormalization"), reason="Keras has none")
def test_normalizing_without_a_mean_is_left_as_it_is() -> None:
    assert not fusions_of(0.0, layers.RMSNormalization())["layer_norms"]


def test_no_rows_and_values_that_are_no_numbers_come_out_as_before() -> None:
    layer = keras.Sequential([layers.LayerNormalization(), layers.Dense(2)])
    layer.build((None, 4096))
    rows = np.ones((256, 4096), np.float32)
    rows[0, 0], rows[1, 0] = np.nan, np.inf

    def outcomes() -> list[np.ndarray]:
        signature = [tf.TensorSpec((None, 4096))]
        call = tf.function(lambda x: layer(x), input_signature=signature)
        return [call(tf.constant(part)).numpy() for part in (rows, rows[:0])]

    plans = plans_without_loss(outcomes, 0.0, fuse="layer_norms")
    assert any(plan.fusions for plan in plans)


@pytest.mark.usefixtures("disabled_afterwards")
def test_a_normalization_without_a_bias_before_it_can_be_in_16_bits() -> None:
    def low_norms(fuse: str) -> list[str]:
        options = {"device_profile": "cpu-avx512-bf16", "opt_level": "O2"}
        tf_amp.enable(tune="off", fuse=fuse, **options)
        model = keras.Sequential([keras.Input((16, 16, 3)), *biased_convolutions()])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        data = np.ones((64, 16, 16, 3)), np.ones((64, 4))
        model.fit(*data, batch_size=16, verbose=0)
        rows = [row for plan in tf_amp.plans() for row in plan.decisions if row.is_low]
        ops = [row.op for row in rows if "BatchNorm" in row.op]
        return [op for op in ops if "Grad" not in op]

    assert not low_norms("batch_statistics")
    assert low_norms("batch_statistics,normalized_biases")
