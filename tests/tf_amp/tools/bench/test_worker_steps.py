"""Steps made of a function of the user's, and of a SavedModel."""

from __future__ import annotations

import pathlib

import pytest

from tests.forking import run_forked

MODELS = """
import numpy as np, tensorflow as tf

def model_of(batch, *, rows=64, compiled=True):
    import keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    if compiled:
        model.compile("sgd", "mse")
    return model, np.ones((rows, 4), "float32")

def keras_pair(batch): return model_of(batch)
def keras_triple(batch): return (*model_of(batch), np.zeros((64, 1), "float32"))
def too_little(batch): return model_of(batch, rows=2)
def step(batch): return lambda: tf.ones((batch,))
def of_mode(batch, mode): return lambda: tf.ones((batch, 1 + (mode == "train")))
def number(batch): return 3
def pair(batch): return 1, 2
constant = 3
"""

ASKED = """
import sys; sys.path.insert(0, ".")
import numpy as np, tensorflow as tf
from tf_amp.errors import AmpError
from tf_amp.tools.bench.worker import step_of_function, step_of_saved_model
def shape(asked):
    try:
        return np.shape(asked()())
    except AmpError as error:
        return str(error)
{program}
"""

ANSWERS = {
    "models:step train": "(8,)",
    "models:of_mode train": "(8, 2)",
    "models:of_mode infer": "(8, 1)",
    "models:keras_triple train": "()",
    "models:keras_pair infer": "(8, 1)",
    "models:keras_pair train": "returned no y",
    "models:too_little infer": "returned 2 examples for 8",
    "models:number train": "returned int; wanted is a callable",
    "models:pair train": "returned a tuple with int",
    "models:constant train": "has no such function",
    "models:missing train": "has no such function",
    "nowhere.at.all:step train": "there is no module nowhere",
}


def printed(program: str, folder: pathlib.Path) -> list[str]:
    (folder / "models.py").write_text(MODELS)
    return run_forked(ASKED.format(program=program), cwd=folder).lines()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each asked step computes, or why there is none, from one process."""
    program = """
for asked in ASKED:
    name, mode = asked.split()
    print(f"{asked}={shape(lambda: step_of_function(name, 8, mode))}")
""".replace("ASKED", repr([*ANSWERS]))
    lines = printed(program, tmp_path_factory.mktemp("models"))
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(("asked", "answer"), ANSWERS.items())
def test_a_function_makes_a_step_or_it_is_said_why_not(
    answers: dict[str, str], asked: str, answer: str
) -> None:
    assert answer in answers[asked]


def test_a_signature_is_run_on_made_up_batches(tmp_path: pathlib.Path) -> None:
    program = """
model = tf.Module()
model.weight = tf.Variable(tf.ones((4, 2)))
def score(x, ids): return {"out": x @ model.weight, "ids": ids}
ids = tf.TensorSpec((), tf.int32, name="ids")
def named(size):
    x = tf.TensorSpec((size, 4), name="x")
    return tf.function(score).get_concrete_function(x, ids)
tf.saved_model.save(model, "one", {"open": named(None)})
tf.saved_model.save(model, "two", {"open": named(None), "three": named(3)})
tf.saved_model.save(model, "none", {})
def asked(folder, signature):
    def ask():
        step = step_of_saved_model(folder, signature, 8)
        return lambda: step()["out"]
    return shape(ask)
for each in (("one", None), ("two", "open"), ("two", None), ("two", "three"),
             ("two", "four"), ("none", None)):
    print(asked(*each))
"""
    found = printed(program, tmp_path)
    assert found[:2] == ["(8, 2)", "(8, 2)"]
    assert "several signatures; --signature open, three?" in found[2]
    assert "x: float32 [3, 4] has a batch size of its own" in found[3]
    assert "no signature 'four'; it has open, three" in found[4]
    assert "has no signatures to run" in found[5]
