"""What starting a function takes on the host, whatever it computes."""

from __future__ import annotations

import statistics

import tensorflow as tf

from tf_amp.measuring.op_timing import elapsed

_WIDTH = 32
_LAYERS = 4
_CALLS = 200


def call_seconds() -> float:
    """Return the seconds from the call of a small function until its result is there.

    It is a network of a few layers: handles of weights are passed to a call, and the
    first op that uses threads wakes them up. The median counts:
    threads wake up late in an undisturbed call, too.
    """
    with tf.device("/CPU:0"):
        layers = [
            (tf.Variable(tf.ones((_WIDTH, _WIDTH))), tf.Variable(tf.ones((_WIDTH,))))
            for _ in range(_LAYERS)
        ]
        inputs = tf.ones((_WIDTH, _WIDTH))

    def apply(values: tf.Tensor) -> tf.Tensor:
        for weight, bias in layers:
            values = tf.nn.relu(values @ weight + bias)
        return values

    function = tf.function(apply, autograph=False)

    def call() -> None:
        function(inputs).numpy()

    for _ in range(_CALLS // 10):
        call()
    return statistics.median(elapsed(call) for _ in range(_CALLS))
