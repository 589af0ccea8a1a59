"""What is measured, in which order: models, variants, and the jobs they come to.

Nothing here imports TensorFlow: a process imports the module of one model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.catalog import Entry
from tf_amp.tools.bench.job import FLOAT32, KERAS, OURS, TENSORFLOW

FULL, SMALL = "full", "small"
SIZES = (FULL, SMALL)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run a model.

    Attributes:
      name: in the raw figures.
      title: for readers; the type stands behind it.
      method: of `tf-amp bench`.
      is_second: whether it computes in the type that the device would not choose:
        float16 where it computes in bfloat16.
    """

    name: str
    title: str
    method: str
    is_second: bool = False


VARIANTS = {
    each.name: each
    for each in (
        Variant("float32", "float32", FLOAT32),
        Variant("keras", "Keras' policy", KERAS),
        Variant("ours", "tf-amp", OURS),
        Variant("builtin", "TensorFlow's pass", TENSORFLOW),
        Variant("keras_second", "Keras' policy", KERAS, is_second=True),
        Variant("ours_second", "tf-amp", OURS, is_second=True),
    )
}
BASE = "float32"
# Processes of a job, at most; each gets as large a part of the GPU's memory.
LIVING_AT_ONCE = 4
_FIRST = {True: ("float32", "keras", "ours"), False: ("float32", "keras", "ours")}
_SECOND = {
    True: ("float32", "keras_second", "ours_second"),
    False: ("float32", "builtin", "keras_second", "ours_second"),
}
# TensorFlow's pass rewrites nothing of what XLA compiles.
_PEERS_AT_ONCE = {
    True: ("float32", "keras", "ours"),
    False: ("float32", "keras", "builtin", "ours"),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """Variants of one model whose processes live at once and take turns."""

    model: str
    is_compiled: bool
    variants: tuple[str, ...]

    def __str__(self) -> str:
        """Return its name in the raw figures."""
        how = "compiled" if self.is_compiled else "graph"
        return f"{self.model}, {how}: {' '.join(self.variants)}"


_BERT = {"vocabulary": 30522, "length": 128, "width": 768, "heads": 12}
_GPT = {"vocabulary": 50257, "length": 512, "width": 768, "heads": 12, "depth": 12}
_TRANSLATOR = {"vocabulary": 32000, "length": 64, "heads": 8}
_ADAM = "adam_1e-4"


def _entry(
    name: str, title: str, optimizer: str, batch: int, module: str, **sizes: Any
) -> Entry:
    return Entry(name, title, optimizer, batch, batch, module, sizes)


_MODELS = (
    _entry(
        "bert_4",
        "BERT-base with 4 layers",
        _ADAM,
        32,
        "language_model",
        depth=4,
        **_BERT,
    ),
    _entry(
        "transformer_1024",
        "Transformer 1024 with 4 layers",
        _ADAM,
        64,
        "translator",
        width=1024,
        depth=2,
        **_TRANSLATOR,
    ),
    _entry("resnet50", "ResNet-50", "momentum", 64, "resnet50", side=224),
    _entry(
        "gpt2",
        "GPT-2 small",
        _ADAM,
        8,
        "language_model",
        is_decoder=True,
        **_GPT,
    ),
    _entry(
        "transformer_512",
        "Transformer 512",
        _ADAM,
        64,
        "translator",
        width=512,
        depth=6,
        **_TRANSLATOR,
    ),
    _entry(
        "lstm",
        "LSTM 2 x 1500",
        _ADAM,
        64,
        "lstm",
        vocabulary=10_000,
        length=35,
        width=1500,
    ),
    _entry("mobilenet_v3", "MobileNetV3", "momentum", 96, "mobilenet_v3", side=224),
    _entry(
        "wide_deep",
        "wide & deep",
        "sgd",
        8192,
        "wide_deep",
        vocabulary=100_000,
        width=64,
    ),
    _entry(
        "mlp",
        "MLP",
        _ADAM,
        2048,
        "mlp",
        inputs=4096,
        hidden=(4096,) * 5,
        classes=1000,
    ),
    _entry(
        "bert_12",
        "BERT-base with 12 layers",
        _ADAM,
        32,
        "language_model",
        depth=12,
        **_BERT,
    ),
)
MODELS = {each.name: each for each in _MODELS}
_FIRST_MODELS = ("bert_4", "transformer_1024", "resnet50")
# XLA compiles no recurrence of cuDNN, so that Keras leaves such a model as it is.
_NOT_COMPILED = ("lstm",)
# What a stage measures of which models, the most telling first.
_STAGES: tuple[tuple[tuple[str, ...], Mapping[bool, tuple[str, ...]]], ...] = (
    (_FIRST_MODELS, _FIRST),
    (_FIRST_MODELS, _SECOND),
    (
        ("gpt2", "transformer_512", "lstm", "mobilenet_v3", "wide_deep", "mlp"),
        _PEERS_AT_ONCE,
    ),
    (("bert_12",), _PEERS_AT_ONCE),
)
_SMALL_WORDS = {"vocabulary": 50, "length": 8, "width": 16, "heads": 2, "depth": 1}
_SMALL_BATCH = 4
_SMALL_SIZES: Mapping[str, Mapping[str, Any]] = {
    "language_model": _SMALL_WORDS,
    "translator": _SMALL_WORDS,
    "resnet50": {"side": 32},
    "mobilenet_v3": {"side": 32},
    "lstm": {"vocabulary": 50, "length": 4, "width": 16},
    "wide_deep": {"vocabulary": 50, "width": 4},
    "mlp": {"inputs": 32, "hidden": (64, 64), "classes": 10},
}


def model_of(name: str, size: str) -> Entry:
    """Return a model in a size: FULL, or SMALL for a CPU."""
    full = MODELS[name]
    if size == FULL:
        return full
    sizes = {**full.sizes, **_SMALL_SIZES[full.module]}
    return dataclasses.replace(full.with_batch(_SMALL_BATCH), sizes=sizes)


def jobs() -> Iterator[Job]:
    """Yield the jobs, the most telling first."""
    for models, variants in _STAGES:
        for model in models:
            for is_compiled in (False,) if model in _NOT_COMPILED else (True, False):
                yield Job(model, is_compiled, variants[is_compiled])
