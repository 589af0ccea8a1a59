"""Training steps with fewer, larger kernels: ``python -m benchmarks.training_fusions``.

The training steps of the models, with the optimizers that they have in the other
tables: as Keras writes them, so again, and with updates and normalizations in one
kernel each, with the types of a CPU without 16-bit units, which are float32. All three
take turns in one process.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence

import keras
from rich.progress import track

import tf_amp
from benchmarks.catalog import MODELS, entry
from benchmarks.driver import worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import Step, build_model, step_of
from benchmarks.turns import compared

_NAMES = tuple(model.name for model in MODELS)
_ROUNDS = 15
_TITLES = (
    "model",
    "optimizer",
    "weights",
    "updates",
    "normalizations",
    "float32 ms",
    "A/A",
    "fused",
)
_EXPLANATION = (
    "*weights*: elements, in millions. *updates*, *normalizations*: how many are one "
    "kernel each, of all weights; of batches. *A/A*, *fused*: speed-up over float32 of "
    f"float32 again, and fused: median of {_ROUNDS} rounds, quartiles in brackets."
)

# Cells of the table, and seconds of the steps, round by round.
Row = tuple[tuple[str, ...], list[list[float]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the section of RESULTS.md on them."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_fusions")
    parser.add_argument(
        "--models", type=lambda text: tuple(text.split(",")), default=_NAMES
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.worker:
        print(json.dumps(_row(options.models[0])))
        return 0
    rows = [_measured(name) for name in track(options.models, "measuring")]
    table = markdown_table(_TITLES, [cells for cells, _ in rows])
    publish(
        "training_fusions",
        f"{table}\n\n{_EXPLANATION}",
        {cells[0]: samples for cells, samples in rows},
        given,
        rounds=_ROUNDS,
        is_whole=options.models == _NAMES,
    )
    return 0


def _measured(name: str) -> Row:
    """Measure one model in a process of its own."""
    lines = worker_lines("training_fusions", "--worker", "--models", name)
    cells, seconds = json.loads(lines[-1])
    return tuple(cells), seconds


def _row(name: str) -> Row:
    model = entry(name)

    def traced() -> tuple[keras.Model, Step]:
        built = build_model(model)
        step = step_of(built, model, "train")
        step()
        return built, step

    (network, plain), (_, again) = traced(), traced()
    tf_amp.enable(device_profile="cpu-generic", tune="off", strict=True)
    _, fused = traced()
    tf_amp.disable()
    weights = network.trainable_variables
    timed = compared((plain, again, fused), _ROUNDS)
    cells = (
        model.title,
        model.optimizer,
        f"{sum(math.prod(weight.shape) for weight in weights) / 1e6:.2f}",
        f"{_kernels(fused, 'ResourceApply')} of {len(weights)}",
        str(_kernels(fused, "FusedBatchNormV3")),
        *timed.cells,
    )
    return cells, timed.seconds


def _kernels(step: Step, kind: str) -> int:
    """Return how many operations of a step have a name that begins like this."""
    graph = step.function.get_concrete_function(*step.arguments).graph
    graph_def = graph.as_graph_def()
    bodies = (function.node_def for function in graph_def.library.function)
    return sum(
        node.op.startswith(kind)
        for nodes in (graph_def.node, *bodies)
        for node in nodes
    )


if __name__ == "__main__":
    sys.exit(main())
