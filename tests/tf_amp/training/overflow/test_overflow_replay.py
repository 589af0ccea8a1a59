"""What running a step again must not do: wait, draw from a queue, or call the program.

Each in a process of its own, since one that waits for ever would keep the others.
"""

from __future__ import annotations

import pytest

from tests.forking import run_forked

PROGRAM = """
import queue, signal, threading
import numpy as np
import tensorflow as tf
import tf_amp
from tf_amp.training import overflow_origin as origin

signal.alarm(100)
v1 = tf.compat.v1
tf_amp.enable("float16", opt_level="O2")

def product(x, w):
    with tf.name_scope("layer"):
        return tf.reduce_mean(tf.matmul(x, w))

def training_step(x_of):
    w = tf.Variable(tf.ones([8, 8]))
    optimizer = tf.keras.optimizers.SGD()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = product(x_of(), w)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    return step

taken = []
batches = queue.Queue()

def take():
    taken.append(1)
    return batches.get()

def from_program(function=tf.numpy_function):
    return tf.ensure_shape(function(take, [], tf.float32), [4, 8])

def fill(count):
    for _ in range(count):
        batches.put(np.full([4, 8], 6e4, "float32"))

def told():
    found = origin.latest_origin()
    return found.layer if found else None
"""


def test_a_graph_that_reads_a_queue_goes_on_and_the_layer_is_named() -> None:
    done = run_forked(
        PROGRAM
        + """
with tf.Graph().as_default():
    x = v1.train.batch([tf.fill([8], 6e4)], 4)
    ones = v1.ones_initializer()
    w = v1.get_variable("w", [8, 8], initializer=ones, use_resource=True)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(product(x, w))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        coordinator = v1.train.Coordinator()
        threads = v1.train.start_queue_runners(session, coordinator)
        for _ in range(3):
            session.run(train)
        print(told())
        coordinator.request_stop()
        coordinator.join(threads)
"""
    )
    assert done.lines() == ["layer"], done.err


@pytest.mark.parametrize("kind", ["numpy_function", "py_function"])
def test_a_function_of_the_program_is_called_once_a_step(kind: str) -> None:
    done = run_forked(
        PROGRAM
        + f"""
step = training_step(lambda: from_program(tf.{kind}))
fill(3)
for _ in range(3):
    step()
print(told(), len(taken))
"""
    )
    assert done.lines() == ["layer 3"], done.err


def test_what_a_loop_takes_from_the_program_is_not_taken_again() -> None:
    done = run_forked(
        PROGRAM
        + """
from absl import logging
logging.set_verbosity(logging.INFO)

def sum_of_batches():
    def add(i, total):
        return i + 1, total + from_program()
    return tf.while_loop(lambda i, total: i < 2, add, (0, tf.zeros([4, 8])))[1]

step = training_step(sum_of_batches)
fill(4)
step()
step()
print(told(), len(taken))
"""
    )
    assert done.lines() == ["None 4"], done.err
    assert "The origin of an overflow is not known" in done.err
    assert "(PyFunc) may have effects" in done.err


LOOP = """
def after(rounds):
    grow = lambda i, x: (i + 1, x + 1.0)
    return tf.while_loop(lambda i, x: i < rounds, grow, (0, tf.fill([4, 8], 3e4)))[1]
"""


def test_the_layer_behind_a_loop_is_named() -> None:
    done = run_forked(
        PROGRAM + LOOP + "training_step(lambda: after(3))(); print(told())"
    )
    assert done.lines() == ["layer"], done.err


def test_a_step_that_takes_long_to_run_again_is_given_up() -> None:
    done = run_forked(
        PROGRAM
        + LOOP
        + """
from absl import logging
from tf_amp.training import overflow_search
logging.set_verbosity(logging.INFO)
overflow_search.LIMIT_SECONDS = 0.02
training_step(lambda: after(20_000))()
print(told())
"""
    )
    assert done.lines() == ["None"], done.err
    assert "The origin of an overflow is not known" in done.err
    assert "longer than 0.02 seconds" in done.err
