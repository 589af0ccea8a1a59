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
from absl import logging
from tf_amp.training import overflow_search

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

def after(rounds):
    grow = lambda i, x: (i + 1, x + 1.0)
    return tf.while_loop(lambda i, x: i < rounds, grow, (0, tf.fill([4, 8], 3e4)))[1]

def told():
    found = tf_amp.loss_scale_state().overflow_origin
    return found.layer if found else None
"""

READS_A_QUEUE = """
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
CALLS_THE_PROGRAM = """
step = training_step(lambda: from_program(tf.{kind}))
fill(3)
for _ in range(3):
    step()
print(told(), len(taken))
"""
TAKES_IN_A_LOOP = """
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
TAKES_LONG = """
logging.set_verbosity(logging.INFO)
overflow_search.LIMIT_SECONDS = 0.02
training_step(lambda: after(20_000))()
print(told())
"""
UNKNOWN = "The origin of an overflow is not known"
# What a program prints, and what it is told.
PROGRAMS = {
    "a graph that reads a queue goes on": (READS_A_QUEUE, "layer", []),
    **{
        f"a {kind} is called once a step": (
            CALLS_THE_PROGRAM.replace("{kind}", kind),
            "layer 3",
            [],
        )
        for kind in ("numpy_function", "py_function")
    },
    "what a loop takes from the program is not taken again": (
        TAKES_IN_A_LOOP,
        "None 4",
        [UNKNOWN, "(PyFunc) may have effects"],
    ),
    "the layer after a loop is named": (
        "training_step(lambda: after(3))(); print(told())",
        "layer",
        [],
    ),
    "what takes long to run again is given up": (
        TAKES_LONG,
        "None",
        [UNKNOWN, "longer than 0.02 seconds"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_is_run_again_by_itself(name: str) -> None:
    program, printed, told = PROGRAMS[name]
    done = run_forked(PROGRAM + program)
    assert done.lines() == [printed], done.err
    assert all(words in done.err for words in told), done.err
