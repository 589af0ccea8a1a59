"""The programs by name, and which of their graphs are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.training_graphs.words import Step
from tests.golden_programs import convolutional, dense, sequences, structures
from tests.programs import public_functions


class Program(NamedTuple):
    """A program whose plans are kept.

    Attributes:
      build: returns its graph.
      stored: whether its graph for CPUs is stored as Grappler leaves it, since what
        Grappler fuses in it hangs on oneDNN, which not every CPU has, or since tracing
        it takes most of a second.
      compiled: whether XLA compiles it.
      keras: whether it is of Keras 3, whose releases write other graphs.
    """

    build: Callable[[], Step]
    stored: bool = False
    compiled: bool = False
    keras: bool = False

    def is_stored_for(self, kind: str) -> bool:
        """Return whether its graph for a kind of device, "cpu" or "gpu", is stored."""
        return self.stored and kind == "cpu"

    @property
    def name(self) -> str:
        """By which it is called."""
        return self.build.__name__


_STORED = """
    wide_deep gan resnet resnext mobilenet_inference volumes speech lstm masked_gru
    bert gpt einsum_attention legacy_keras mixed_keras
""".split()
_OF_KERAS = """
    wide_mlp tiny_mlp convnet convnet_inference mobilenet efficientnet group_norm lstm
    masked_gru einsum_attention encoder_inference accumulation mixed_keras
""".split()
PROGRAMS = tuple(
    Program(
        build,
        stored=build.__name__ in _STORED,
        compiled=build is structures.compiled,
        keras=build.__name__ in _OF_KERAS,
    )
    for module in (dense, convolutional, sequences, structures)
    for build in public_functions(module)
)
BY_NAME = {program.name: program for program in PROGRAMS}
