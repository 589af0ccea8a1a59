"""Training steps with fewer, larger kernels: ``python -m benchmarks.training_fusions``.

The training steps of the models, with the optimizers that they have in the other
tables, and of one of them with further optimizers: as Keras writes them, so again, and
with updates and normalizations in one kernel each, with the types of a CPU without
16-bit units, which are float32. All three take turns in one process.
"""

import dataclasses
import math

import keras

import tf_amp
from benchmarks.cases import Found, measure_cases
from benchmarks.catalog import MODELS, entry
from benchmarks.steps import Step, build_model, step_of
from benchmarks.turns import compared

# Of the model whose steps spend the largest part on updates.
_FURTHER = (
    "momentum",
    "nesterov",
    "adamw",
    "rmsprop",
    "adagrad",
    "adadelta",
    "adamax",
    "ftrl",
)
_CASES = (
    *(model.name for model in MODELS),
    *(f"mlp.{optimizer}" for optimizer in _FURTHER),
)
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


def measured(name: str) -> Found:
    """Return the row of a model, and seconds of its steps, round by round."""
    of, _, optimizer = name.partition(".")
    model = entry(of)
    if optimizer:
        model = dataclasses.replace(model, optimizer=optimizer)

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
    return [cells], timed.seconds


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
    measure_cases(
        "training_fusions", _CASES, measured, _TITLES, _EXPLANATION, rounds=_ROUNDS
    )
