"""A trial inside Grappler's callback leaves the program that waits for it alone."""

from __future__ import annotations

import pytest

from tests.forking import run_forked
from tf_amp.devices import cpu_flags

pytestmark = pytest.mark.skipif(
    not cpu_flags() & {"avx512_bf16", "amx_bf16"},
    reason="without 16-bit units no plan is worth a trial",
)

_PRELUDE = """
import dataclasses
import gc
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass.costs import CostModel
from tf_amp.tuning import apart, tuner, verdicts

# Prices are measured in tests of their own.
tuner.OnlineTuner.measure = lambda self, stakes, low_dtype: False
asked = []
is_faster = verdicts.is_faster

def recording(trial, *rest):
    verdict = is_faster(trial, *rest)
    asked.append(verdict)
    return verdict

verdicts.is_faster = recording
tf_amp.enable()
called = []
A = np.full([640, 640], 0.5, np.float32)

def note(x):
    called.append(1)
    return x
"""

_PROGRAMS = """
def run_function():
    weight = tf.Variable(A)
    count = tf.Variable(0)

    @tf.function
    def step(x):
        count.assign_add(1)
        tf.numpy_function(note, [x[0, 0]], tf.float32)
        weight.assign_add(tf.ones_like(weight))
        return tf.reduce_sum((x @ weight) @ weight)

    step(tf.constant(A))
    assert count.numpy() == 1 and len(called) == 1
    assert (weight.numpy() == 1.5).all()

def run_session():
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [640, 640])
        weight = v1.Variable(A, use_resource=False)
        noted = tf.numpy_function(note, [x[0, 0]], tf.float32)
        update = v1.assign_add(weight, tf.ones([640, 640]))
        with tf.control_dependencies([update, noted]):
            loss = tf.reduce_sum((x @ A) @ A)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            operations = len(graph.get_operations())
            session.run(loss, {x: A})
            assert len(graph.get_operations()) == operations
            assert (session.run(weight) == 1.5).all()
    assert len(called) == 1

def run_fit():
    import keras
    model = keras.Sequential([keras.layers.Dense(640), keras.layers.Dense(640)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(A, A, batch_size=320, verbose=0)
    assert model.optimizer.iterations.numpy() == 2

def held():
    # By identity: every variable of the process; those of the Session are gone.
    gc.collect()
    variables = [v for v in gc.get_objects() if isinstance(v, tf.Variable)]
    read = lambda stopped: {id(v): v.numpy().tobytes() for v in variables}
    return apart.run_apart(read, 60.0)

def run_scaled_fit():
    import keras
    tf_amp.enable(dtype="float16", loss_scale="dynamic")
    # On a CPU it is not faster, but prices may be wrong.
    price = CostModel.price
    def believed(self, call, dtype, probe=None):
        float32 = price(self, call, "float32", probe)
        share = 1.0 if dtype == "float32" else 0.3
        return dataclasses.replace(float32, seconds=share * float32.seconds, error=0.1)
    CostModel.price = believed
    tried = verdicts.is_faster

    def watching(*given):
        before = held()
        verdict = tried(*given)
        changed.append(before != held())
        kept.append(len(before))
        return verdict

    verdicts.is_faster = watching
    changed, kept = [], []
    model = keras.Sequential([keras.layers.Dense(160), keras.layers.Dense(160)])
    model.compile("adam", "mse", jit_compile=False)
    model.fit(A[:, :160], A[:, :160], batch_size=320, verbose=0)
    assert asked and None not in asked
    # Weights and biases with two moments each, a step and what the loss scale keeps.
    assert not any(changed) and min(kept) > 13
    assert model.optimizer.iterations.numpy() == 2

for program in (run_function, run_session, run_fit, run_scaled_fit):
    asked.clear()
    called.clear()
    program()
    print(program.__name__, [verdict in (True, False, None) for verdict in asked][:1])
"""


def test_programs_notice_nothing_of_a_trial() -> None:
    done = run_forked(
        _PRELUDE + _PROGRAMS, env={"TF_AMP_TUNE": "budget:60", "TF_AMP_STRICT": "1"}
    )
    names = ("run_function", "run_session", "run_fit", "run_scaled_fit")
    assert done.lines()[-4:] == [f"{name} [True]" for name in names]
    assert "Error" not in done.err
