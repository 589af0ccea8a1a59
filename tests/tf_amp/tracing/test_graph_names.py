"""What graphs are called where people read of them."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.forking import run_forked
from tests.processes import ROOT

BEGIN = """
import functools, pathlib, runpy
import numpy as np, keras
import tensorflow as tf
import tf_amp
from tf_amp.rewriting import host
x, w = tf.ones((64, 64)), tf.ones((64, 64))
tf_amp.enable(device_profile="cpu-amx-bf16", verbose=False)
names = []
host.current().watchers.append(lambda rewrite: names.append(rewrite.plan.graph))
data = np.ones((64, 64), "float32")

def model(kit=keras, **kwargs):
    made = kit.Sequential([kit.layers.Dense(64), kit.layers.Dense(64)])
    made.compile("sgd", "mse", **kwargs)
    return made

"""
END = "\nprint(*dict.fromkeys(names), sep='; ')\n"


def names_in(program: str, cwd: pathlib.Path = ROOT) -> str:
    (line,) = run_forked(BEGIN + program + END, cwd=cwd).lines()
    return line


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("model().fit(data, data, verbose=0)", "training step of `fit`"),
        (
            "model().fit(data, data, verbose=0, validation_data=(data, data))",
            "training step of `fit`; validation step of `fit`",
        ),
        ("model(jit_compile=True).evaluate(data, data, verbose=0)", "`evaluate`"),
        (
            "model(steps_per_execution=2).predict(data, batch_size=32, verbose=0)",
            "`predict`",
        ),
        ("model().train_on_batch(data, data)", "`train_on_batch`"),
        (
            "import tf_keras\nmodel(tf_keras).fit(data, data, verbose=0)",
            "training step of `fit`",
        ),
        ("@tf.function\ndef fit():\n    return x @ w\nfit()", "fit"),
        (
            "@tf.function\ndef train_function():\n    return x @ w\ntrain_function()",
            "train_function",
        ),
        (
            "graph = tf.Graph()\nwith graph.as_default():\n"
            "    product = tf.ones((64, 64)) @ tf.random.normal((64, 64))\n"
            "tf.compat.v1.Session(graph=graph).run(product)",
            "graph of a Session",
        ),
    ],
)
def test_a_graph_is_called_as_its_user_would_call_it(program: str, names: str) -> None:
    assert names_in(program) == names


# Whose third line makes a product.
SCRIPT = {
    "a lambda": "step = tf.function(\n    lambda x:\n    x @ w)\n",
    "a lambda with branches": (
        "step = tf.function(lambda x: tf.cond(\n    tf.reduce_sum(x) > 0.0,\n"
        "    lambda: x @ w, lambda: x))\n"
    ),
    "what takes fewer arguments": (
        "def product(w, x):\n    y = tf.nn.relu(x)\n    return x @ w + y\n"
        "step = tf.function(functools.partial(product, w))\n"
    ),
    "an object": (
        "class Step:\n    def __call__(self, x):\n        return x @ w\n"
        "step = tf.function(Step())\n"
    ),
}


@pytest.mark.parametrize("kind", SCRIPT)
def test_what_has_no_name_is_called_after_its_line(
    kind: str, tmp_path: pathlib.Path
) -> None:
    run = """
names_known = dict(tf=tf, x=x, w=w, functools=functools)
pathlib.Path("train.py").write_text({script!r})
step = runpy.run_path("train.py", names_known)["step"]
step(x)
names.append(tf_amp.explain(step, x).graph)
names.append(tf_amp.explain(step.get_concrete_function(x)).graph)
"""
    line = names_in(run.format(script=SCRIPT[kind]), tmp_path)
    assert line in {f"function at train.py:{number}" for number in (1, 2, 3)}


def test_a_model_in_a_function_is_called_after_the_line_that_traces_it() -> None:
    line = names_in("tf.function(model())(x)")
    assert re.fullmatch(r"function at <string>:\d+", line)
