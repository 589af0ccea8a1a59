"""The programs by name, and which of their graphs are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.training_graphs.words import Step
from tests.golden_programs import convolutional, dense, sequences, structures


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


PROGRAMS = (
    Program(dense.wide_mlp, keras=True),
    Program(dense.tiny_mlp, keras=True),
    Program(dense.wide_deep, stored=True),
    Program(dense.ncf),
    Program(dense.vae),
    Program(dense.gan, stored=True),
    Program(dense.gradient_penalty),
    Program(dense.two_towers),
    Program(dense.quantizer),
    Program(dense.mixture_of_experts),
    Program(convolutional.convnet, keras=True),
    Program(convolutional.convnet_inference, keras=True),
    Program(convolutional.resnet, stored=True),
    Program(convolutional.resnext, stored=True),
    Program(convolutional.mobilenet, keras=True),
    Program(convolutional.efficientnet, keras=True),
    Program(convolutional.mobilenet_inference, stored=True),
    Program(convolutional.u_net),
    Program(convolutional.volumes, stored=True),
    Program(convolutional.group_norm, keras=True),
    Program(convolutional.detector),
    Program(convolutional.suppression),
    Program(convolutional.preprocessing),
    Program(convolutional.text_cnn),
    Program(convolutional.speech, stored=True),
    Program(sequences.lstm, stored=True, keras=True),
    Program(sequences.masked_gru, stored=True, keras=True),
    Program(sequences.unrolled_lstm),
    Program(sequences.bert, stored=True),
    Program(sequences.gpt, stored=True),
    Program(sequences.einsum_attention, stored=True, keras=True),
    Program(sequences.encoder_inference, keras=True),
    Program(sequences.vision_transformer),
    Program(sequences.cached_decoder),
    Program(structures.while_loop),
    Program(structures.conditional),
    Program(structures.accumulation, keras=True),
    Program(structures.custom_gradient),
    Program(structures.float64_parts),
    Program(structures.session),
    Program(structures.saved_model),
    Program(structures.legacy_keras, stored=True),
    Program(structures.compiled, compiled=True),
    Program(structures.scaled_loss),
    Program(structures.mixed_keras, stored=True, keras=True),
    Program(structures.graph_network),
    Program(structures.ragged),
    Program(structures.sparse),
    Program(structures.lookup),
)
BY_NAME = {program.name: program for program in PROGRAMS}
