"""A step of thousands of small operations is worth compiling, as its steps find."""

from __future__ import annotations

import pathlib

import pytest

from tests.forking import run_tuned

_PROGRAM = """
import statistics
import time
import tensorflow as tf
import tf_amp
from tf_amp.compare import background, call_sites, compiled_steps

# On a busy machine it would take long to begin and to be done.
compiled_steps._REPAID = background._NICENESS = 0

def chain():
    v = tf.Variable(tf.linspace(0.1, 1.0, 64))

    @tf.function
    def step(x):
        h = x
        for i in range(1000):
            h = tf.tanh(h * v + 0.001 * i)
        v.assign_sub(1e-6 * h)
        return tf.reduce_sum(h)

    return step

def seconds(step):
    begin = time.perf_counter()
    step(x)
    return time.perf_counter() - begin

def is_decided():
    site = next(site for site in call_sites.all_sites() if "step" in site.name)
    is_over = site.comparison is None or site.comparison.is_over
    return site.count > 9 and is_over and not site.compiling

end = time.monotonic() + 240
tf_amp.enable(compile="{mode}")
x = tf.ones([64])
compiled = chain()
compiled(x)
while time.monotonic() < end and not is_decided():
    compiled(x)
with tf_amp.mixed_precision_scope(compile="off"):
    plain = chain()
    plain(x)
print(statistics.median(seconds(plain) / seconds(compiled) for _ in range(300)))
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["clusters", "on"])
def test_a_step_of_3000_small_operations_becomes_twice_as_fast(
    mode: str, tmp_path: pathlib.Path
) -> None:
    (ratio,) = run_tuned(_PROGRAM.format(mode=mode), tmp_path)
    assert float(ratio) >= 2.0
