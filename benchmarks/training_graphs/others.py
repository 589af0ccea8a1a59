"""GNMT, in loops unrolled, and NCF."""

from functools import partial

import tensorflow as tf

from benchmarks.training_graphs.words import (
    Step,
    Tensor,
    adam,
    dense,
    dropout,
    integers,
    training_step,
    variable,
    word_loss,
)

_WIDTH = 1024


class _Cell:
    """An LSTM's weights; TensorFlow 1's BasicLSTMCell, op by op."""

    def __init__(self, inputs: int) -> None:
        self._kernel = variable("kernel", inputs + _WIDTH, 4 * _WIDTH)
        self._bias = variable("bias", 4 * _WIDTH)

    def __call__(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        memory, output = state
        gates = tf.matmul(tf.concat((x, output), 1), self._kernel)
        write, new, forget, show = tf.split(tf.nn.bias_add(gates, self._bias), 4, 1)
        kept = memory * tf.sigmoid(forget + 1.0)
        memory = kept + tf.sigmoid(write) * tf.tanh(new)
        return memory, tf.tanh(memory) * tf.sigmoid(show)


def _start(batch: int) -> tuple[Tensor, Tensor]:
    return tf.zeros((batch, _WIDTH)), tf.zeros((batch, _WIDTH))


def _run(cell: _Cell, inputs: list[Tensor]) -> list[Tensor]:
    state, outputs = _start(inputs[0].shape[0]), []
    for x in inputs:
        state = cell(dropout(x, 0.2), state)
        outputs.append(state[1])
    return outputs


def _encode(words: Tensor, batch: int, length: int) -> list[Tensor]:
    inputs = tf.unstack(tf.gather(words, integers(batch, length)), axis=1)
    there = _run(_Cell(_WIDTH), inputs)
    back = _run(_Cell(_WIDTH), inputs[::-1])[::-1]
    outputs = [tf.concat(pair, 1) for pair in zip(there, back, strict=True)]
    outputs = _run(_Cell(2 * _WIDTH), outputs)
    for _ in range(2):
        above = _run(_Cell(_WIDTH), outputs)
        outputs = [a + b for a, b in zip(above, outputs, strict=True)]
    return outputs


def _gnmt_loss(batch: int, length: int) -> Tensor:
    vocabulary = 32320
    words = variable("words", vocabulary, _WIDTH)
    memory = tf.stack(_encode(words, batch, length), 1)
    keys, strength = dense(memory, _WIDTH), variable("v", _WIDTH)
    to_query = variable("query", _WIDTH, _WIDTH)
    targets = tf.unstack(tf.gather(words, integers(batch, length)), axis=1)
    cells = [_Cell(2 * _WIDTH) for _ in range(4)]
    states = [_start(batch) for _ in cells]
    context, outputs = tf.zeros((batch, _WIDTH)), []
    for x in targets:
        states[0] = cells[0](tf.concat((dropout(x, 0.2), context), 1), states[0])
        query = tf.matmul(states[0][1], to_query)
        scores = tf.reduce_sum(strength * tf.tanh(keys + query[:, None]), -1)
        chances = tf.nn.softmax(scores)
        context = tf.matmul(chances[:, None], memory)[:, 0]
        x = states[0][1]
        for level in (1, 2, 3):
            inputs = tf.concat((dropout(x, 0.2), context), 1)
            states[level] = cells[level](inputs, states[level])
            x = x + states[level][1] if level > 1 else states[level][1]
        outputs.append(x)
    flat = tf.reshape(tf.stack(outputs), (batch * length, _WIDTH))
    logits = tf.matmul(flat, variable("projection", _WIDTH, vocabulary))
    return word_loss(logits, integers(batch * length))


def gnmt(batch: int, length: int, *, scaled: bool = False) -> Step:
    """Return a step of GNMT v2: four layers on each side, attention to the first."""
    return training_step(partial(_gnmt_loss, batch, length), adam, scaled=scaled)


def _ncf_loss(batch: int) -> Tensor:
    users, items = integers(batch), integers(batch)

    def looked_up(width: int) -> tuple[Tensor, Tensor]:
        return (
            tf.gather(variable("users", 138493, width), users),
            tf.gather(variable("items", 26744, width), items),
        )

    of_user, of_item = looked_up(64)
    x = tf.concat(looked_up(128), 1)
    for units in (256, 128, 64):
        x = dense(x, units, tf.nn.relu)
    logits = dense(tf.concat((of_user * of_item, x), 1), 1)
    labels = tf.cast(integers(batch, 1), tf.float32)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses)


def ncf(batch: int, *, scaled: bool = False) -> Step:
    """Return a step of neural collaborative filtering on MovieLens 20M."""
    return training_step(partial(_ncf_loss, batch), adam, scaled=scaled)
