"""Layers of transformers in other forms: ``python -m benchmarks.rows``.

Layers as Keras writes them, so again, and by hand in a form that TensorFlow has larger
kernels for; and layers of an encoder fused by tf-amp. All take turns in one process, in
float32.
"""

import argparse
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from tensorflow.core.framework.attr_value_pb2 import AttrValue

import tf_amp
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.turns import Compared, compared

_BATCH, _LENGTH, _HEAD, _ROUNDS = 8, 128, 64, 15
_WIDTHS = (256, 768)
_MASKED = -2.3e38
_TITLES = ("layer", "width", "instead", "float32 ms", "A/A", "instead of it")
_EXPLANATION = (
    f"Inference on {_BATCH} x {_LENGTH} rows, or with gradients where that is said. "
    "*A/A*, *instead of it*: speed-up over the layer as Keras 3 writes it, of itself "
    f"and of the other form: median of {_ROUNDS} rounds, quartiles in brackets. "
    "Only *fused* is done by tf-amp, with the types of a CPU without 16-bit units."
)

Call = Callable[[tf.Tensor], tf.Tensor]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on rows."""
    argparse.ArgumentParser(prog="python -m benchmarks.rows").parse_args()
    rows, samples = [], {}
    for width in _WIDTHS:
        x = tf.random.stateless_normal((_BATCH, _LENGTH, width), seed=(1, 2))
        for name, instead, layer, other in _layers(x, width):
            forms = (_traced(layer, x), _traced(layer, x), _traced(other, x))
            timed = compared(forms, _ROUNDS)
            rows.append((name, str(width), instead, *timed.cells))
            samples[f"{name}, {instead}, {width}"] = timed.seconds
        timed = _encoder(x, width)
        rows.append(("encoder", str(width), "fused", *timed.cells))
        samples[f"encoder, {width}"] = timed.seconds
    table = "\n\n".join((markdown_table(_TITLES, rows), _EXPLANATION))
    publish("rows", table, samples, rounds=_ROUNDS)


def _traced(call: Call, x: tf.Tensor) -> Callable[[], tf.Tensor]:
    function = tf.function(call, jit_compile=False, autograph=False)
    function(x)
    return lambda: function(x)


def _layers(x: tf.Tensor, width: int) -> Iterator[tuple[str, str, Call, Call]]:
    """Yield layers by name, what the other form is, and both."""
    norm = layers.LayerNormalization(epsilon=1e-3)
    norm.build(x.shape)
    yield "LayerNormalization", "`_MklLayerNorm`", norm, lambda x: _kernel(norm, x)
    for instead, other in (
        ("gradients by hand", _by_hand),
        ("`FusedBatchNormV3` of rows", _of_batches),
    ):
        yield (
            "LayerNormalization, gradients",
            instead,
            _with_gradients(norm),
            _with_gradients(functools.partial(other, norm)),
        )
    rms = layers.RMSNormalization(epsilon=1e-6)
    rms.build(x.shape)
    yield "RMSNormalization", "mean by `MatMul`", rms, lambda x: _squared(rms, x)
    for name in ("linear", "relu", "gelu", "gelu, tanh"):
        activation = keras.activations.get(name.partition(",")[0])
        if "tanh" in name:
            activation = _tanh_gelu
        dense = layers.Dense(4 * width, activation=activation)
        dense.build(x.shape)
        rows = _in_rows(dense, activation)
        yield f"Dense, {name}", "`Reshape` last", dense, rows
    attention = layers.MultiHeadAttention(width // _HEAD, _HEAD)
    attention.build(x.shape, x.shape)
    mask = tf.random.stateless_uniform((_BATCH, 1, _LENGTH), seed=(3, 4)) > 0.2
    parts = (attention._query_dense, attention._key_dense, attention._value_dense)
    yield (
        "MultiHeadAttention, masked",
        "`_MklFusedBatchMatMulV2`",
        lambda x: attention(x, x, attention_mask=mask),
        lambda x: attention._output_dense(_attended([p(x) for p in parts], mask)),
    )
    scores = ops.reshape(x, (_BATCH, -1, _LENGTH, _LENGTH))
    softmax = layers.Softmax()
    yield (
        "Softmax, masked",
        "`AddV2` of the mask",
        lambda _: softmax(scores, mask=mask[:, None]),
        lambda _: (
            tf.nn.softmax(scores + _added(mask)) * tf.cast(mask[:, None], x.dtype)
        ),
    )


def _tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    return keras.activations.gelu(x, approximate=True)


def _kernel(norm: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    """Normalize by a kernel without a name in Python."""
    inputs = [tf.convert_to_tensor(each) for each in (x, norm.gamma, norm.beta)]
    attrs = {"T": AttrValue(type=1), "epsilon": AttrValue(f=norm.epsilon)}
    graph = tf.compat.v1.get_default_graph()
    made = graph.create_op(
        "_MklLayerNorm", inputs, [x.dtype], attrs=attrs, name="normalized"
    )
    return made.outputs[0]


def _with_gradients(norm: Call) -> Call:
    """Return what computes a normalization's gradients; its outputs are theirs."""

    def call(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = norm(x)
        weights = tape.watched_variables()
        gradient, *others = tape.gradient(outputs, [x, *weights], outputs)
        with tf.control_dependencies(others):
            return tf.identity(gradient)

    return call


def _by_hand(norm: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    """Return what a LayerNormalization does, with fewest passes on the way back."""
    width = x.shape[-1]

    @tf.custom_gradient
    def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[Any, Any]:
        centered = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
        scale = tf.math.rsqrt(variance + norm.epsilon)
        unit = centered * scale

        def gradients(given: tf.Tensor) -> tuple[tf.Tensor, ...]:
            product = given * unit
            # Sums over rows of what is multiplied by gamma are products with it.
            mean, slope = (
                tf.matmul(each, gamma[:, None] / width) for each in (given, product)
            )
            inner = (given * gamma - mean - unit * slope) * scale
            return inner, tf.reduce_sum(product, [0, 1]), tf.reduce_sum(given, [0, 1])

        return unit * gamma + beta, gradients

    return normalized(*map(tf.convert_to_tensor, (x, norm.gamma, norm.beta)))


def _of_batches(norm: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    """Return what a LayerNormalization does, rows being taken for channels."""
    rows, none = math.prod(x.shape[:-1]), tf.zeros([0])
    unit, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, (1, rows, -1, 1)),
        scale=tf.ones([rows]),
        offset=tf.zeros([rows]),
        mean=none,
        variance=none,
        epsilon=norm.epsilon,
        data_format="NCHW",
        is_training=True,
    )
    return tf.reshape(unit, x.shape) * norm.gamma + norm.beta


def _squared(rms: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    rows = x[..., None, :]
    mean = tf.matmul(rows, rows, transpose_b=True)[..., 0] / x.shape[-1]
    return x * tf.math.rsqrt(mean + rms.epsilon) * rms.scale


def _in_rows(dense: keras.Layer, activation: Call) -> Call:
    def call(x: tf.Tensor) -> tf.Tensor:
        product = tf.reshape(x, (-1, x.shape[-1])) @ dense.kernel
        activated = activation(tf.nn.bias_add(product, dense.bias))
        return tf.reshape(activated, (*x.shape[:-1], dense.units))

    return call


def _attended(parts: Sequence[tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
    query, key, value = (tf.transpose(part, (0, 2, 1, 3)) for part in parts)
    scores = tf.matmul(query, key, transpose_b=True) * _HEAD**-0.5 + _added(mask)
    return tf.transpose(tf.nn.softmax(scores) @ value, (0, 2, 1, 3))


def _added(mask: tf.Tensor) -> tf.Tensor:
    return tf.where(mask[:, None], 0.0, _MASKED)


def _encoder(x: tf.Tensor, width: int) -> Compared:
    """Compare a layer of an encoder with itself, and with what tf-amp makes of it."""
    given = keras.Input(x.shape[1:])
    attended = layers.MultiHeadAttention(width // _HEAD, _HEAD)(given, given)
    hidden = layers.LayerNormalization()(given + attended)
    wide = layers.Dense(4 * width, activation="gelu")(hidden)
    hidden = layers.LayerNormalization()(hidden + layers.Dense(width)(wide))
    model = keras.Model(given, hidden)
    plain, again = _traced(model, x), _traced(model, x)
    tf_amp.enable(device_profile="cpu-generic", tune="off", strict=True)
    fused = _traced(model, x)
    tf_amp.disable()
    return compared((plain, again, fused), _ROUNDS)


if __name__ == "__main__":
    main()
