"""What `tf-amp bench` times for the charts of methods by batch sizes."""

from __future__ import annotations

import importlib

import keras
import numpy as np

from benchmarks.catalog import entry
from benchmarks.steps import build_model
from evidence.families import translation

Made = tuple[keras.Model, object, np.ndarray]


def resnet50(batch: int) -> Made:
    """Return ResNet-50 on images of 128 x 128, with its batch."""
    return _made("resnet50", batch)


def bert(batch: int) -> Made:
    """Return an encoder in the style of BERT, with its batch."""
    return _made("bert", batch)


def wide_deep(batch: int) -> Made:
    """Return a wide and deep network, with its batch."""
    return _made("wide_deep", batch)


def transformer(batch: int) -> Made:
    """Return the transformer that translates Django's messages, with its batch."""
    keras.utils.set_random_seed(0)
    sources, targets, kinds = translation.messages()
    model = translation.network(kinds, width=128, depth=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("adam", loss, jit_compile=False)
    return model, (sources[:batch], targets[:batch, :-1]), targets[:batch, 1:]


def _made(name: str, batch: int) -> Made:
    module = importlib.import_module(entry(name).module_name)
    return build_model(entry(name)), *module.sample(np.random.default_rng(0), batch)
