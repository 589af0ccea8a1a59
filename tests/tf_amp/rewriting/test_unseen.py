"""The line at the end of a program of which nothing could be rewritten."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

from tests.forking import run_forked
from tests.processes import run_python
from tests.tf_amp.rewriting.test_notices import lines_of

ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
# As a long job would be.
LONG = "from tf_amp.rewriting import unseen\nunseen.LONG_SECONDS = 0.0\n"
TRAINING = """
import keras, tensorflow as tf
weight = tf.Variable(tf.ones((128, 128)))
data = tf.ones((128, 128))

def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(data @ weight))
    weight.assign_sub(0.1 * tape.gradient(loss, weight))

def model(**kwargs):
    made = keras.Sequential([keras.layers.Dense(128)])
    made.compile("sgd", "mse", **kwargs)
    return made

"""
ENABLE = "import tf_amp\ntf_amp.enable()\n"
# Forked processes have imported TensorFlow before.
NOTICED = "from tf_amp.runtime import autostart\nautostart.note_variable(weight)\n"


@pytest.mark.parametrize(
    ("program", "env"),
    [
        (f"{LONG}{TRAINING}{NOTICED}step()", ON),
        (f"{LONG}{ENABLE}{TRAINING}step()", {}),
        (
            f"{LONG}{ENABLE}{TRAINING}"
            "model(run_eagerly=True).fit(data, data, verbose=0)",
            {},
        ),
        (
            f"{LONG}{ENABLE}{TRAINING}"
            "for x in tf.data.Dataset.from_tensors(data).map(lambda x: x @ x):\n"
            "    step()",
            {},
        ),
    ],
    ids=["variable", "enable", "Keras", "tf.data"],
)
def test_a_long_eager_job_ends_with_what_to_do(
    program: str, env: dict[str, str]
) -> None:
    (line,) = lines_of(program, env)
    assert re.match(
        r"nothing was rewritten in \d s, since no graph with a matrix", line
    )
    assert line.endswith(
        "make the step a tf.function, and leave out run_eagerly=True (AMP108)"
    )


@pytest.mark.parametrize(
    ("program", "env"),
    [
        (f"{TRAINING}{NOTICED}step()", ON),
        (f"{LONG}{TRAINING}{NOTICED}step()", {**ON, "TF_AMP_VERBOSE": "0"}),
        (f"{LONG}{TRAINING}{NOTICED}{ENABLE}tf_amp.disable()\nstep()", ON),
        (f"{LONG}{TRAINING}{NOTICED}step()", {}),
        (f"{LONG}{ENABLE}{TRAINING}tf.function(step)()", {"TF_AMP_OPT_LEVEL": "O0"}),
        (
            f"{LONG}import tensorflow as tf\nfrom tf_amp.runtime import autostart\n"
            "for shape in ([], [128 * 128], [64, 64]):\n"
            "    autostart.note_variable(tf.Variable(tf.ones(shape)))\n",
            ON,
        ),
    ],
    ids=["short", "quiet", "off later", "off", "level", "small"],
)
def test_nothing_is_said_of_what_is_short_small_or_not_to_be_rewritten(
    program: str, env: dict[str, str]
) -> None:
    assert lines_of(program, env) == []


def test_nothing_is_said_where_a_graph_came_or_came_too_early() -> None:
    lines = lines_of(f"{LONG}{ENABLE}{TRAINING}tf.function(step)()", {})
    early = f"{LONG}{TRAINING}early = tf.function(step)\nearly()\n{ENABLE}early()"
    lines += lines_of(early, {})
    assert [line[-8:] for line in lines] == ["(AMP102)", "(AMP103)"]


def test_nothing_is_said_where_a_server_runs_the_graph() -> None:
    program = f"""
{LONG}{ENABLE}
import tensorflow as tf
from tf_amp.rewriting import arriving_graphs
server = tf.distribute.Server.create_local_server()
with tf.Graph().as_default():
    product = tf.ones((128, 128)) @ tf.random.normal((128, 128))
    # As in another process, which need not have tf-amp.
    arriving_graphs.unseen = type(unseen)("unseen")
    arriving_graphs.unseen.note_products = lambda: None
    tf.compat.v1.Session(server.target).run(product)
"""
    assert not [line for line in lines_of(program, {}) if "(AMP108)" in line]


def test_the_variable_alone_has_an_eager_program_watched_from_its_start() -> None:
    program = f"{TRAINING}{LONG}step()\n"
    done = run_python(program, env=ON)
    assert done.err.count("(AMP108)") == 1, done.err


OTHER_BACKEND = """
import keras
from keras.src.backend import config
config._BACKEND = "jax"
"""


@pytest.mark.parametrize("on", ["", ENABLE])
def test_another_backend_of_keras_is_named_once(on: str) -> None:
    note = "from tf_amp.runtime import autostart\nautostart.note_model(None)\n"
    made = "model = keras.Sequential()\n"
    env = {} if on else ON
    (line,) = lines_of(OTHER_BACKEND + on + made + (note + note) * (not on) + made, env)
    assert line == (
        "Keras computes with jax here, of which nothing is rewritten; set "
        "KERAS_BACKEND=tensorflow, or do without tf-amp (AMP109)"
    )


def test_nothing_is_said_of_keras_on_tensorflow() -> None:
    assert lines_of(f"{ENABLE}import keras\nkeras.Sequential()\n", {}) == []


def test_a_model_of_another_backend_computes_as_it_did() -> None:
    found = importlib.util.find_spec("jax")
    if found is None or found.origin is None:
        pytest.skip("no other backend of Keras works without JAX")
    program = """
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(64)])
model.compile("sgd", "mse")
data = np.ones((64, 64))
model.fit(data, data, verbose=0)
print(model.predict(data, verbose=0).shape)
"""
    folder = str(pathlib.Path(found.origin).parent.parent)
    env = {**ON, "KERAS_BACKEND": "jax", "PYTHONPATH": folder}
    done = run_python(program, env=env)
    assert done.lines() == ["(64, 64)"] and done.err.count("(AMP109)") == 1


def test_eager_operations_cost_what_they_did() -> None:
    program = f"""
{TRAINING}
from tensorflow.python.eager import execute
before = execute.execute, execute.record_gradient
{NOTICED}
print((execute.execute, execute.record_gradient) == before)
"""
    assert run_forked(program, env=ON).lines() == ["True"]
