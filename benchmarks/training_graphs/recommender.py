"""Wide & deep on the clicks of Outbrain, as NVIDIA's collection trains it.

Only the GPU's part: hashing features and looking them up has no kernels for GPUs there.
What the host has looked up stands here as variables whose gradients go back to it.
"""

from functools import partial

import tensorflow as tf

from benchmarks.training_graphs.words import (
    Gradients,
    Step,
    Tensor,
    dense,
    floats,
    training_step,
    v1,
    variable,
)

# Columns looked up for a sample, in tables of 300k, 250k, 100k and fourteen smaller.
WIDTHS = (*(128,) * 3, *(64,) * 14)
_REST = 32 + 16
_WIDTH, _LAYERS = 1024, 5
_FROM_HOST = "from_host"


def _wide_deep_loss(batch: int) -> Tensor:
    looked_up = [variable(_FROM_HOST, batch, width) for width in WIDTHS]
    x = tf.concat([floats(batch, _REST), *looked_up], 1)
    for _ in range(_LAYERS):
        x = dense(x, _WIDTH, tf.nn.relu)
    logits = dense(x, 1) + variable(_FROM_HOST, batch, 1)
    labels = floats(batch, 1)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def _update(gradients: Gradients) -> tf.Operation:
    own = [pair for pair in gradients if not pair[1].name.startswith(_FROM_HOST)]
    handed_back = [g for g, v in gradients if v.name.startswith(_FROM_HOST)]
    update = v1.train.AdagradOptimizer(1.0).apply_gradients(own)
    return tf.group(update, *handed_back)


def wide_deep(batch: int, *, scaled: bool = False) -> Step:
    """Return a step of wide & deep, without what the host does in it."""
    return training_step(partial(_wide_deep_loss, batch), _update, scaled=scaled)
