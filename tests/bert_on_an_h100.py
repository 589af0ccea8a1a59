"""What a training step of BERT-base takes on an H100: predicted beside measured.

    python -m tests.bert_on_an_h100 [VARIANT ...]

The step of `benchmarks.gpu` (12 layers of 768, batch 32, length 128, Adam) is traced,
optimized as TensorFlow does it for such a GPU, which need not be present, and priced as
it is. A process takes one variant; exit code 1: one is farther off than it may be.

Measured on an H100 80GB HBM3 (TensorFlow 2.21, driver 580.159.04, 2026-11-27): medians
of six rounds, in turns with other programs on the same 16 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple
from unittest import mock

import tensorflow as tf

import tf_amp
from benchmarks.gpu.jobs import FULL, model_of
from benchmarks.steps import build_model, sample_of
from grappler_pass.fusions import RULES
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import draft_graph
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.prices import is_started
from tests.pretended_gpu import H100, pretended
from tf_amp._tensorflow_private import graphs as private
from tf_amp.config.amp_config import AmpConfig
from tf_amp.tools.target_device import target_of
from tf_amp.tracing import grappler_preview, stack
from tf_amp.training import optimizer_fusions


class Variant(NamedTuple):
    """A way to run the step.

    Attributes:
      measured: milliseconds.
      within: how far off a prediction may be, as a share.
      policy: of Keras.
      dtype: that tf-amp is enabled with; "" for off.
      scales_loss: whether Keras does, without a policy that does it by itself.
      of_tensorflow: whether TensorFlow's own pass is on.
      is_compiled: by XLA.
    """

    measured: float
    within: float = 0.3
    policy: str = "float32"
    dtype: str = ""
    scales_loss: bool = False
    of_tensorflow: bool = False
    is_compiled: bool = False


VARIANTS = {
    "float32": Variant(91.3),
    "mixed_bfloat16": Variant(84.8, policy="mixed_bfloat16"),
    "mixed_float16": Variant(134.9, policy="mixed_float16"),
    "TensorFlow's pass": Variant(102.4, scales_loss=True, of_tensorflow=True),
    "tf-amp": Variant(49.7, 0.25, dtype="bfloat16"),
    "tf-amp, float16": Variant(49.1, dtype="float16"),
    "float32, compiled": Variant(28.0, 0.2, is_compiled=True),
    "mixed_bfloat16, compiled": Variant(
        14.4, 0.2, policy="mixed_bfloat16", is_compiled=True
    ),
}
# One that is farther off: the reason is not known.
OPEN = frozenset({"mixed_float16"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", choices=[*VARIANTS, []])
    names = parser.parse_args(arguments).variants
    if len(names) == 1:
        return 0 if _print_row(*names) else 1
    command = [sys.executable, "-m", __spec__.name]
    codes = [subprocess.run([*command, n]).returncode for n in names or VARIANTS]
    return max(codes)


def _print_row(name: str) -> bool:
    """Print a variant's figures; return whether it is as near as it should be."""
    variant = VARIANTS[name]
    draft, weights = draft_of(variant)
    seconds = draft.plan.seconds_before
    starts = sum(map(is_started, draft.view.nodes)) / weights
    ratio = 1e3 * seconds / variant.measured
    print(
        f"{name:25}  predicted {1e3 * seconds:6.1f} ms  measured "
        f"{variant.measured:6.1f}  ratio {ratio:.2f}  started per weight {starts:.1f}",
        flush=True,
    )
    return name in OPEN or abs(ratio - 1.0) <= variant.within


def draft_of(variant: Variant, layers: int = 12) -> tuple[Draft, int]:
    """Return a step as an H100 would run it, priced, and how many weights it trains.

    Everything is as it is for the rest of the process.
    """
    import keras

    keras.mixed_precision.set_global_policy(variant.policy)
    if variant.dtype:
        # As it was measured, when each update computed its scalars by itself.
        tf_amp.enable(dtype=variant.dtype, fuse=set(RULES) - {"shared_scalars"})
    entry = model_of("bert_12", FULL)
    entry = dataclasses.replace(entry, sizes={**entry.sizes, "depth": layers})
    # On a GPU the smallest variables have fused updates, too.
    fuses_all = mock.patch.object(optimizer_fusions, "_LEAST_ELEMENTS", 0)
    with pretended(H100), fuses_all:
        model = build_model(entry, scales_loss=variant.scales_loss)
        loss_of = importlib.import_module(entry.module_name).loss()
        optimizer, weights = model.optimizer, model.trainable_variables

        def train(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(targets, model(inputs, training=True))
                scaled = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(scaled, weights), weights)
            return loss

        sample = sample_of(entry, "train")
        graph = tf.function(train).get_concrete_function(*sample).graph
        kept = grappler_preview.kept_nodes(graph)
        graph_def = grappler_preview.graph_with_variables(graph)
        if variant.is_compiled:
            # XLA compiles what was traced, without TensorFlow's optimizers.
            graph_def = grappler_preview.inlined_graph(graph_def, kept)
        else:
            graph_def = _optimized(graph_def, kept, variant)
        target = target_of("h100")
        settings = target.settings(
            AmpConfig(opt_level="O0", fuse=()), is_compiled=variant.is_compiled
        )
        graph_def = target.placed(graph_def)
        draft = draft_graph(
            graph_def,
            Item(fetch=kept, preserve=kept),
            settings,
            shapes=lambda: shapes_from_graph_def(graph_def),
        )
    return draft, len(weights)


def _optimized(
    graph_def: tf.compat.v1.GraphDef, kept: tuple[str, ...], variant: Variant
) -> tf.compat.v1.GraphDef:
    """Return what TensorFlow makes of a graph for the GPU, in two iterations."""
    placed = grappler_preview.on_device(graph_def, "GPU")
    request, options = grappler_preview.request_for(placed, kept)
    rewrites = options.graph_options.rewrite_options
    rewrites.meta_optimizer_iterations = rewrites.TWO
    if variant.of_tensorflow:
        rewrites.auto_mixed_precision = rewrites.ON
    grappler, alone = private.grappler(), stack.leaving_graphs_alone()
    assert grappler is not None
    with contextlib.nullcontext() if variant.dtype else alone:
        cluster = private.cluster_of(H100.architecture)
        return grappler.OptimizeGraph(options, request, False, cluster=cluster)


if __name__ == "__main__":
    sys.exit(main())
