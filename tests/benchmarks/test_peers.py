"""The table beside PyTorch, which no test here installs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import tensorflow as tf

from benchmarks import peers, recurrent
from benchmarks.catalog import entry
from benchmarks.processes import ROOT, worker_environment
from benchmarks.products import count_in_best_products
from benchmarks.steps import build_model, step_of

HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_tf_amp_is_held_against_the_best_of_each_framework_in_the_same_round() -> None:
    seconds = {way.title: [0.9, 0.9, 0.9] for way in peers.WAYS}
    seconds["products alone"] = [0.1, 0.05, 0.12]
    seconds["autocast"] = [0.2, 0.4, 0.3]
    # Compiled is the best of one round.
    seconds["autocast, compiled"] = [0.5, 0.1, 0.5]
    seconds["Keras policy"] = [0.6, 0.6, 0.6]
    seconds["tf-amp"] = [0.2, 0.2, 0.2]
    text = peers.markdown({("mlp", "train"): seconds})
    cells = "900.0 | 300.0 | 500.0 | 900.0 | 600.0 | 900.0 | 200.0 | 100.0 | 0.50"
    speeds = "3.00 (3.00-3.00) | 1.00 (0.50-1.50)"
    assert f"| MLP, train | {cells} | {speeds} |" in text
    assert "3.00 times as fast as TensorFlow's best and 1.00 times" in text


def test_products_in_loops_count_as_often_as_they_run() -> None:
    rows, inner, columns, rounds = 64, 128, 32, 5
    right = tf.random.normal([inner, columns])
    back = tf.random.normal([columns, inner])

    def multiply(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(rounds):
            x = tf.nn.relu(x @ right) @ back
        return tf.reduce_sum(x @ right)

    step, x = tf.function(multiply), tf.random.normal([rows, inner])
    count = count_in_best_products(lambda: step(x))
    products = 2 * rounds + 1
    assert count == pytest.approx(products * rows * inner * columns / 1024**3)


def test_the_products_of_recurrent_layers_are_those_of_their_model() -> None:
    model = entry("lstm")
    count = count_in_best_products(step_of(build_model(model), model, "train"))
    alone = [
        times * left.shape.num_elements() * right.shape[1]
        for times, _, (left, right) in recurrent.products("train")
    ]
    assert count == pytest.approx(sum(alone) / 1024**3)


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_pytorch_it_says_what_brings_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers"],
        cwd=ROOT,
        env=worker_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "PyTorch is not installed: pip install '.[peers]'\n"


@pytest.mark.skipif(not HAS_TORCH, reason="pip install '.[peers]' brings PyTorch")
def test_the_models_in_pytorch_are_of_the_sizes_of_ours() -> None:
    from benchmarks.torch_models import TORCH_MODELS

    for name, model in TORCH_MODELS.items():
        network = model.build()
        inputs, targets = model.batch(2)
        outputs = network(inputs)
        assert outputs.shape == (*targets.shape, model.classes)
        ours = build_model(entry(name))
        assert outputs.shape[1:] == ours.output_shape[1:]
        weights = sum(each.numel() for each in network.parameters())
        # Some have two biases where we have one.
        assert weights == pytest.approx(ours.count_params(), rel=0.01)
