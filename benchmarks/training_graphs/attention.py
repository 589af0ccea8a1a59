"""BERT-large in pretraining, the translation transformer, and Transformer-XL base."""

from functools import partial

import tensorflow as tf

from benchmarks.training_graphs.words import (
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


def _heads(x: Tensor, heads: int) -> Tensor:
    """Return [batch, heads, length, width / heads]."""
    batch, length, width = x.shape
    return tf.transpose(
        tf.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3)
    )


def _attend(x: Tensor, memory: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    batch, length, width = x.shape
    query, key, value = (
        _heads(dense(each, width), heads) for each in (x, memory, memory)
    )
    scores = tf.matmul(query, key, transpose_b=True) * (width // heads) ** -0.5
    if mask is not None:
        scores = scores + mask
    chances = dropout(tf.nn.softmax(scores))
    context = tf.transpose(tf.matmul(chances, value), (0, 2, 1, 3))
    return dense(tf.reshape(context, (batch, length, width)), width)


def _bert_loss(batch: int, length: int, guessed: int) -> Tensor:
    vocabulary, width, heads, layers = 30528, 1024, 16, 24
    words = variable("words", vocabulary, width)
    hidden = tf.gather(words, integers(batch, length))
    hidden = hidden + variable("positions", length, width)
    hidden = hidden + tf.gather(variable("types", 2, width), integers(batch, length))
    hidden = dropout(layer_norm(hidden))
    mask = (1.0 - floats(batch, 1, 1, length)) * -10000.0
    for _ in range(layers):
        attended = dropout(_attend(hidden, hidden, heads, mask))
        hidden = layer_norm(hidden + attended)
        wide = dense(hidden, 4 * width, gelu)
        hidden = layer_norm(hidden + dropout(dense(wide, width)))
    flat = tf.reshape(hidden, (batch * length, width))
    chosen = layer_norm(dense(tf.gather(flat, integers(batch * guessed)), width, gelu))
    logits = tf.matmul(chosen, words, transpose_b=True) + variable("bias", vocabulary)
    pooled = dense(hidden[:, 0], width, tf.tanh)
    return word_loss(logits, integers(batch * guessed)) + word_loss(
        dense(pooled, 2), integers(batch)
    )


def bert_large(batch: int, length: int, guessed: int, *, scaled: bool = False) -> Step:
    """Return a step of pretraining that accumulates gradients."""
    return training_step(
        partial(_bert_loss, batch, length, guessed), accumulate, scaled=scaled
    )


def _translation_loss(sentences: int, length: int, width: int, heads: int) -> Tensor:
    vocabulary, layers = 32768, 6
    words = variable("words", vocabulary, width)

    def embedded() -> Tensor:
        found = tf.gather(words, integers(sentences, length)) * width**0.5
        return dropout(found + variable("positions", length, width))

    def residual(x: Tensor, y: Tensor) -> Tensor:
        return layer_norm(x + dropout(y))

    mask = floats(1, 1, length, length)
    source, target = embedded(), embedded()
    for _ in range(layers):
        source = residual(source, _attend(source, source, heads, None))
        wide = dense(source, 4 * width, tf.nn.relu)
        source = residual(source, dense(wide, width))
    for _ in range(layers):
        target = residual(target, _attend(target, target, heads, mask))
        target = residual(target, _attend(target, source, heads, None))
        wide = dense(target, 4 * width, tf.nn.relu)
        target = residual(target, dense(wide, width))
    flat = tf.reshape(target, (-1, width))
    logits = tf.matmul(flat, words, transpose_b=True)
    return word_loss(logits, integers(sentences * length))


def translation(
    sentences: int, length: int, width: int, *, scaled: bool = False
) -> Step:
    """Return a step of the transformer of Vaswani et al., six layers on each side."""
    heads = width // 64
    return training_step(
        partial(_translation_loss, sentences, length, width, heads), adam, scaled=scaled
    )


def _shifted(x: Tensor) -> Tensor:
    """Return scores by distance [batch, heads, length, span] as scores by position."""
    batch, heads, length, span = x.shape
    x = tf.pad(x, ((0, 0), (0, 0), (0, 0), (1, 0)))
    x = tf.reshape(x, (batch, heads, span + 1, length))[:, :, 1:]
    return tf.reshape(x, (batch, heads, length, span))


def _relative(x: Tensor, memory: Tensor, distances: Tensor, mask: Tensor) -> Tensor:
    batch, length, width = x.shape
    span, heads = length + memory.shape[1], 8
    both = tf.concat((memory, x), 1)
    query, key, value = tf.split(dense(both, 3 * width), 3, -1)
    query = _heads(query[:, -length:], heads)
    places = tf.transpose(
        tf.reshape(dense(distances, width), (span, heads, width // heads)), (1, 2, 0)
    )
    of_words, of_places = (variable("bias", heads, 1, width // heads) for _ in "ab")
    by_word = tf.matmul(query + of_words, _heads(key, heads), transpose_b=True)
    by_place = _shifted(tf.matmul(query + of_places, places[None]))
    scores = (by_word + by_place) * (width // heads) ** -0.5
    chances = tf.nn.softmax(scores * (1.0 - mask) - 1e30 * mask)
    context = tf.transpose(tf.matmul(chances, _heads(value, heads)), (0, 2, 1, 3))
    return dense(tf.reshape(context, (batch, length, width)), width)


def _transformer_xl_loss(batch: int) -> Tensor:
    length, width, inner, layers = 192, 512, 2048, 16
    words = variable("words", 267735, width)
    hidden = dropout(tf.gather(words, integers(batch, length)) * width**0.5)
    distances = dropout(floats(2 * length, width))
    mask = floats(1, 1, length, 2 * length)
    for _ in range(layers):
        attended = _relative(hidden, floats(batch, length, width), distances, mask)
        hidden = layer_norm(hidden + dropout(attended))
        wide = dropout(dense(hidden, inner, tf.nn.relu))
        hidden = layer_norm(hidden + dropout(dense(wide, width)))
    return _adaptive_loss(tf.reshape(hidden, (-1, width)), words)


def _adaptive_loss(hidden: Tensor, words: Tensor) -> Tensor:
    """Return the loss of the adaptive softmax, in clusters of words by frequency."""
    tokens, width = hidden.shape
    head = tf.concat((words[:20000], variable("clusters", 3, width)), 0)
    loss = word_loss(tf.matmul(hidden, head, transpose_b=True), integers(tokens))
    # Tokens of WikiText-103 in each cluster: 6, 8 and 2 percent.
    bounds = ((20000, 40000, 0.06), (40000, 200000, 0.08), (200000, 267735, 0.02))
    for start, end, share in bounds:
        count = max(int(share * tokens) // 8 * 8, 8)
        chosen = tf.gather(hidden, integers(count))
        logits = tf.matmul(chosen, words[start:end], transpose_b=True)
        loss += word_loss(logits, integers(count))
    return loss


def transformer_xl(batch: int, *, scaled: bool = False) -> Step:
    """Return a step of Transformer-XL base that accumulates gradients."""
    return training_step(
        partial(_transformer_xl_loss, batch), accumulate, scaled=scaled
    )
