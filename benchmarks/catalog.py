"""What is measured: the models with their batch sizes, and the variants.

Nothing here imports TensorFlow, so that what starts processes stays light; a process
imports the module of one model.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tf_amp.tools.bench.job import AGAIN, FLOAT32, KERAS, OURS, TENSORFLOW

MODES = ("train", "infer")


@dataclass(frozen=True)
class Entry:
    """One model: its module in ``benchmarks.models`` and how it is fed.

    ``module`` is needed where one module's model is measured in several ways, and
    ``sizes`` where they are not the module's own.
    """

    name: str
    title: str
    optimizer: str
    train_batch: int
    infer_batch: int
    module: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def module_name(self) -> str:
        """Return the name of the module that builds the model."""
        return f"benchmarks.models.{self.module or self.name}"

    def batch(self, mode: str) -> int:
        """Return the batch size of a mode, ``train`` or ``infer``."""
        return self.train_batch if mode == "train" else self.infer_batch

    def with_batch(self, batch: int) -> "Entry":
        """Return the model with another batch size in both modes."""
        return replace(self, train_batch=batch, infer_batch=batch)


@dataclass(frozen=True)
class Variant:
    """One way to run a model: a method of `tf-amp bench`."""

    name: str
    title: str
    method: str


MODELS = (
    Entry("resnet50", "ResNet-50", "sgd", 8, 16),
    Entry("mobilenet_v3", "MobileNetV3", "sgd", 16, 32),
    Entry("bert", "BERT-like encoder", "adam", 4, 8),
    Entry("lstm", "LSTM language model", "adam", 16, 32),
    Entry("wide_deep", "wide & deep", "adam", 1024, 2048),
    Entry("embedding", "embedding 1M x 64", "sgd", 1024, 1024),
    Entry("mlp", "MLP", "adam", 256, 512),
    Entry("tiny_mlp", "tiny MLP", "adam", 32, 32),
)

# What ``make demo`` trains; no part of the comparison.
DEMO_MODELS = (
    Entry("demo_digits", "demo: digits", "adam", 32, 32),
    Entry("demo_text", "demo: text", "adam", 8, 8),
)

# A model of many small ops in several sizes: where 16 bits lose soonest.
MOBILENET_BATCHES = tuple(
    Entry(
        name=f"mobilenet_v3_{batch}",
        title=f"MobileNetV3, batch {batch}",
        optimizer="sgd",
        train_batch=batch,
        infer_batch=batch,
        module="mobilenet_v3",
    )
    for batch in (4, 8, 32, 64)
)
# Of which the largest batch is looked for, beside two of those above.
MEMORY_MODELS = (
    Entry("u_net", "U-Net", "sgd", 2, 4),
    Entry(
        "gpt",
        "GPT-like decoder",
        "adam",
        4,
        8,
        module="language_model",
        sizes={
            "vocabulary": 4000,
            "length": 128,
            "width": 256,
            "heads": 4,
            "depth": 4,
            "is_decoder": True,
        },
    ),
)
ENTRIES = (*MODELS, *MOBILENET_BATCHES, *DEMO_MODELS, *MEMORY_MODELS)

VARIANTS = (
    Variant("float32", "float32", FLOAT32),
    Variant("again", "A/A", AGAIN),
    Variant("keras", "Keras policy", KERAS),
    Variant("builtin", "TensorFlow", TENSORFLOW),
    Variant("ours", "tf-amp", OURS),
    Variant("untuned", "tuning off", f"{OURS}:TUNE=off"),
    Variant("save", "tf-amp save", f"{OURS}:MEMORY=save"),
    Variant("unfused", "not fused", f"{OURS}:FUSE=off"),
    # Prices of a CPU without 16-bit units: what is left are fusions.
    Variant("fused", "fused float32", f"{OURS}:DEVICE_PROFILE=cpu-generic"),
    Variant("ours_float16", "float16", f"{OURS}:DTYPE=float16"),
    Variant("ours_o2", "tf-amp O2", f"{OURS}:O2"),
    Variant("ours_o3", "tf-amp O3", f"{OURS}:O3"),
)

DEFAULT_VARIANTS = ("float32", "again", "keras", "builtin", "ours")


def entry(name: str) -> Entry:
    """Return the model called ``name``."""
    return next(each for each in ENTRIES if each.name == name)


def variant(name: str) -> Variant:
    """Return the variant called ``name``."""
    return next(each for each in VARIANTS if each.name == name)


def subset_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated lists of known names."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"unknown name {name!r}; known: {', '.join(known)}"
                )
        return names

    return parse
