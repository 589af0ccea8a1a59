"""Programs over sequences: recurrent layers and attention."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from benchmarks.training_graphs.words import (
    Gradients,
    Step,
    Tensor,
    accumulate,
    adam,
    dense,
    dropout,
    floats,
    gelu,
    integers,
    layer_norm,
    training_step,
    variable,
    word_loss,
)
from tests.golden_programs.tracing import (
    floats_spec,
    integers_spec,
    keras_inference,
    keras_step,
    outputs_in_graph,
)

_WIDTH, _LENGTH, _BATCH, _WORDS = 1024, 128, 64, 8000
_RECURRENT = 512
_CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def lstm() -> Step:
    """Return a step of a language model of Keras' LSTM under Adam."""
    words = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(2000, _RECURRENT)(words)
    x = layers.LSTM(_RECURRENT, return_sequences=True, use_cudnn=False)(x)
    model = keras.Model(words, layers.Dense(2000)(x))
    spec = integers_spec(_BATCH, _LENGTH)
    return keras_step(model, _CROSS_ENTROPY, keras.optimizers.Adam(1e-3), spec, spec)


def masked_gru() -> Step:
    """Return a step of a bidirectional GRU over masked words."""
    words = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(2000, 256, mask_zero=True)(words)
    x = layers.Bidirectional(layers.GRU(256, use_cudnn=False))(x)
    model = keras.Model(words, layers.Dense(20)(x))
    x, y = integers_spec(_BATCH, _LENGTH), integers_spec(_BATCH)
    return keras_step(model, _CROSS_ENTROPY, keras.optimizers.Adam(1e-3), x, y)


def unrolled_lstm() -> Step:
    """Return a step of four cells of an LSTM in a row, op by op."""

    def loss() -> Tensor:
        kernel, bias = variable("kernel", 2048, 4096), variable("bias", 4096)
        memory, shown = tf.zeros((256, 1024)), tf.zeros((256, 1024))
        for x in tf.unstack(floats(256, 4, 1024), axis=1):
            gates = tf.matmul(tf.concat((x, shown), 1), kernel)
            write, new, forget, show = tf.split(tf.nn.bias_add(gates, bias), 4, 1)
            kept = memory * tf.sigmoid(forget + 1.0)
            memory = kept + tf.sigmoid(write) * tf.tanh(new)
            shown = tf.tanh(memory) * tf.sigmoid(show)
        return word_loss(dense(shown, 2000), integers(256))

    return training_step(loss, adam)


def _heads(x: Tensor, heads: int) -> Tensor:
    split = tf.reshape(x, (*x.shape[:2], heads, x.shape[-1] // heads))
    return tf.transpose(split, (0, 2, 1, 3))


def _attend(x: Tensor, mask: Tensor | None, heads: int = 8) -> Tensor:
    query, key, value = (_heads(dense(x, x.shape[-1]), heads) for _ in range(3))
    scores = tf.matmul(query, key, transpose_b=True) * (x.shape[-1] // heads) ** -0.5
    chances = dropout(tf.nn.softmax(scores if mask is None else scores + mask))
    merged = tf.transpose(tf.matmul(chances, value), (0, 2, 1, 3))
    return dense(tf.reshape(merged, x.shape), x.shape[-1])


def bert() -> Step:
    """Return an accumulating step of a post-norm layer that guesses masked words."""

    def loss() -> Tensor:
        words = variable("words", _WORDS, _WIDTH)
        x = layer_norm(tf.gather(words, integers(_BATCH, _LENGTH)))
        mask = (1.0 - floats(_BATCH, 1, 1, _LENGTH)) * -10000.0
        x = layer_norm(x + dropout(_attend(x, mask)))
        x = layer_norm(x + dropout(dense(dense(x, 4 * _WIDTH, gelu), _WIDTH)))
        chosen = tf.gather(tf.reshape(x, (-1, _WIDTH)), integers(_BATCH * 8))
        logits = tf.matmul(chosen, words, transpose_b=True)
        return word_loss(logits + variable("bias", _WORDS), integers(_BATCH * 8))

    return training_step(loss, accumulate)


def gpt() -> Step:
    """Return a step of a causal pre-norm layer with tied words, clipped by norm."""

    def loss() -> Tensor:
        words = variable("words", _WORDS, _WIDTH)
        x = tf.gather(words, integers(_BATCH, _LENGTH))
        x = x + variable("positions", _LENGTH, _WIDTH)
        seen = tf.linalg.band_part(tf.ones((_LENGTH, _LENGTH)), -1, 0)
        x = x + _attend(layer_norm(x), -1e9 * (1.0 - seen))
        x = x + dense(dense(layer_norm(x), 4 * _WIDTH, tf.nn.gelu), _WIDTH)
        flat = tf.reshape(layer_norm(x), (-1, _WIDTH))
        logits = tf.matmul(flat, words, transpose_b=True)
        return word_loss(logits, integers(_BATCH * _LENGTH))

    def update(gradients: Gradients) -> tf.Operation:
        values, variables = zip(*gradients, strict=True)
        clipped, _ = tf.clip_by_global_norm(values, 1.0)
        return adam(list(zip(clipped, variables, strict=True)))

    return training_step(loss, update)


def einsum_attention() -> Step:
    """Return a step of Keras' multi-head attention between layer normalizations."""
    inputs = keras.Input((_LENGTH, _WIDTH))
    x = layers.LayerNormalization()(inputs)
    x = inputs + layers.MultiHeadAttention(8, _WIDTH // 8)(x, x, use_causal_mask=True)
    x = layers.Dense(_WIDTH, activation="gelu")(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(1000)(x))
    # As in `fit` the size of the batch is open, and prices rest on a guess.
    x, y = floats_spec(None, _LENGTH, _WIDTH), integers_spec(None, _LENGTH)
    return keras_step(model, _CROSS_ENTROPY, keras.optimizers.AdamW(1e-3), x, y)


def encoder_inference() -> Step:
    """Return the inference of a layer of Keras with attention and GELU."""
    inputs = keras.Input((_LENGTH, _WIDTH))
    x = layers.LayerNormalization()(inputs)
    x = inputs + layers.MultiHeadAttention(8, _WIDTH // 8)(x, x)
    x = layers.Dense(2048, activation="gelu")(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(1000)(x))
    return keras_inference(model, floats_spec(_BATCH, _LENGTH, _WIDTH))


def vision_transformer() -> Step:
    """Return the inference of patches with attention among them."""

    def make() -> Tensor:
        kernel = variable("patches", 16, 16, 3, _WIDTH)
        x = tf.nn.conv2d(floats(_BATCH, 224, 224, 3), kernel, 16, "VALID")
        x = tf.reshape(x, (_BATCH, -1, _WIDTH))
        first = tf.tile(variable("class", 1, 1, _WIDTH), (_BATCH, 1, 1))
        x = tf.concat((first, x), 1)
        x = x + _attend(layer_norm(x), None)
        x = x + dense(dense(layer_norm(x), 4 * _WIDTH, tf.nn.gelu), _WIDTH)
        return tf.nn.softmax(dense(layer_norm(x)[:, 0], 1000))

    return outputs_in_graph(make)


def cached_decoder() -> Step:
    """Return the inference of a decoder that adds each word's key to a cache."""

    def make() -> Tensor:
        words, query = variable("words", _WORDS, _WIDTH), variable("q", _WIDTH, _WIDTH)
        keys = variable("k", _WIDTH, _WIDTH)

        def body(step: Tensor, word: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
            x = tf.gather(words, word)
            place = tf.one_hot(step, _LENGTH)[None, :, None]
            cache = cache + place * tf.matmul(x, keys)[:, None]
            asked = tf.matmul(x, query)[:, None]
            scores = tf.matmul(asked, cache, transpose_b=True)
            found = tf.matmul(tf.nn.softmax(scores), cache)[:, 0]
            logits = tf.matmul(x + found, words, transpose_b=True)
            return step + 1, tf.argmax(logits, -1, tf.int32), cache

        start = (tf.constant(0), integers(256), tf.zeros((256, _LENGTH, _WIDTH)))
        return tf.while_loop(lambda step, *_: step < _LENGTH, body, start)[1]

    return outputs_in_graph(make)
