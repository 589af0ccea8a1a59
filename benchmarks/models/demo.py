"""The two models of ``make demo`` with their data, as the benchmark wants a model."""

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@functools.cache
def _task(name: str) -> Any:
    sys.path.append(str(_EXAMPLES))
    return getattr(importlib.import_module("demo_tasks"), name)(steps=1)


def build(name: str) -> keras.Model:
    """Return the untrained model of a task of ``examples/demo_tasks.py``."""
    return _task(name).build()


def loss() -> keras.losses.Loss:
    """Return the cross entropy of logits, as the demo has it."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(
    name: str, rng: np.random.Generator, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first batch that the demo trains on; nothing of it is drawn."""
    inputs, targets = next(_task(name).batches())
    assert len(inputs) == batch, f"{name} has batches of {len(inputs)}"
    return inputs.numpy(), targets.numpy()
