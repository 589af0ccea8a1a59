"""Programs on two replicas, for processes of their own."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from tests.forking import run_forked
from tests.two_cpus import BEGIN

# Data, models and steps that one device and two replicas go through alike.
PROGRAM = """
import math
import sys
import keras_callbacks
from absl import logging

to_output = logging.logging.StreamHandler(sys.stdout)
to_output.setFormatter(logging.logging.Formatter("LOGGED %(message)s"))
logging.get_absl_logger().addHandler(to_output)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 20)).astype(np.float32)
Y = RNG.normal(size=(64, 3)).astype(np.float32)

def build(optimizer="adam"):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.build((None, 20))
    model.compile(optimizer, "mse")
    return model

def train(model, epochs=3):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)
    return model.fit(data, epochs=epochs, verbose=0).history["loss"]

def distance(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)

def alike(variables):
    copies = [getattr(v, "_value", v).values for v in variables]
    return all(len(c) == 2 and np.array_equal(*c) for c in copies)

def loop(strategy, model, optimizer, batches):
    '''A custom loop; returns the mean loss of each step.'''
    @tf.function
    def step(x, y):
        def on_replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2) / 2
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))
            return loss
        losses = strategy.run(on_replica, args=(x, y))
        return strategy.reduce("SUM", losses, axis=None)
    data = tf.data.Dataset.from_tensor_slices(batches).batch(32)
    data = strategy.experimental_distribute_dataset(data)
    return [float(step(x, y)) for x, y in data]

"""


def sections_of(
    programs: Mapping[str, str], kit: str = "keras"
) -> dict[str, list[str]]:
    """Run PROGRAM and others, one after the other, in one process.

    What is logged goes where results go, and so does what does not hold in one of them,
    so that each section has its own.

    Returns:
      The lines that each of them prints, by name.
    """
    code = [BEGIN, f"import {kit} as keras, traceback", PROGRAM]
    for name, program in programs.items():
        code += [f"print('section {name}', flush=True)", "def section():"]
        code += [textwrap.indent(program, "    "), "try:", "    section()"]
        code += ["except Exception:", "    traceback.print_exc(file=sys.stdout)"]
    lines = run_forked("\n".join(code)).lines()
    text = "\n" + "\n".join(lines)
    parts = [part.split("\n") for part in text.split("\nsection ")[1:]]
    return {part[0]: [line for line in part[1:] if line] for part in parts}
