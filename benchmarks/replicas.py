"""Two replicas against one device: ``python -m benchmarks.replicas``.

Trains models in float32 and in mixed precision, on one device and on two logical
devices of the CPU with the same share of a batch on each, and compares the speed-ups,
in time and in seconds of the processor. All variants of a model take turns, so that
what disturbs the machine disturbs all of them.
"""

import argparse
import contextlib
import importlib
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat
from multiprocessing import get_context
from statistics import median
from time import perf_counter

import numpy as np
import tensorflow as tf

import keras_callbacks
import tf_amp
from benchmarks.all_reduce import DEVICES, set_up_devices
from benchmarks.catalog import MODELS, Entry, entry
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import build_model

_SEED = 7
_TITLES = (
    "model",
    "devices",
    "gradients",
    "float32 ms",
    "mixed ms",
    "speed-up",
    "in CPU seconds",
)
_LEGEND = (
    "Median milliseconds per training step, and float32 over mixed, its lowest and "
    "highest of a round in brackets. Each device gets half of the model's batch, alone "
    "or beside the other, so that an update weighs as much in each row; two logical "
    "devices of one CPU share its cores and do twice the work of one. *In CPU "
    "seconds*: the same ratio of the seconds that the processor's cores worked, which "
    "other programs on the machine disturb less."
)
Step = Callable[[], object]
_WAYS = ((1, "float32"), (2, "float32"), (2, "bfloat16"))


@dataclass
class Timed:
    """Seconds of each step of one variant: as they passed, and of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def step_of(model: Entry, devices: int, exchange: str, *, mixed: bool) -> Step:
    """Return a traced training step of a model."""
    strategy = keras_callbacks.mirrored_strategy(DEVICES[:devices], all_reduce=exchange)
    module = importlib.import_module(model.module_name)
    share = module.sample(np.random.default_rng(_SEED), model.batch("train") // 2)
    with strategy.scope():
        built = build_model(model)
    inputs, targets = tf.nest.map_structure(tf.constant, share)

    @tf.function(jit_compile=False)
    def step() -> tf.Tensor:
        def on_replica() -> tf.Tensor:
            return built.train_step((inputs, targets))["loss"]

        return strategy.run(on_replica)

    scope = contextlib.nullcontext()
    if mixed:
        scope = tf_amp.mixed_precision_scope(dtype="bfloat16")
    with scope:
        step()
    return step


def timed(steps: Sequence[Step], rounds: int) -> list[Timed]:
    """Return the seconds of each step, in turn."""
    seconds = [Timed() for _ in steps]
    for round_number in range(rounds + 1):
        for step, kept in zip(steps, seconds, strict=True):
            start, cpu_start = perf_counter(), _cpu_seconds()
            tf.nest.map_structure(lambda loss: loss.numpy(), _values(step()))
            if round_number:
                kept.wall.append(perf_counter() - start)
                kept.cpu.append(_cpu_seconds() - cpu_start)
    return seconds


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _values(result: object) -> list[tf.Tensor]:
    return list(getattr(result, "values", (result,)))


def rows_of(
    name: str, rounds: int
) -> list[tuple[tuple[str, ...], dict[str, dict[str, list[float]]]]]:
    """Measure a model; return a row for each number of devices and exchange."""
    set_up_devices()
    model = entry(name)
    steps = [
        step_of(model, devices, exchange, mixed=mixed)
        for devices, exchange in _WAYS
        for mixed in (False, True)
    ]
    seconds = timed(steps, rounds)
    rows = []
    for place, (devices, exchange) in enumerate(_WAYS):
        float32, mixed = seconds[2 * place : 2 * place + 2]
        ratios = [a / b for a, b in zip(float32.wall, mixed.wall, strict=True)]
        ratio = median(float32.wall) / median(mixed.wall)
        cells = (
            model.title,
            f"{devices}",
            exchange if devices > 1 else "-",
            f"{1e3 * median(float32.wall):.0f}",
            f"{1e3 * median(mixed.wall):.0f}",
            f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{median(float32.cpu) / median(mixed.cpu):.2f}",
        )
        rows.append((cells, {"float32": asdict(float32), "mixed": asdict(mixed)}))
    return rows


def main() -> None:
    """Measure, print, and write the section of RESULTS.md."""
    names = tuple(model.name for model in MODELS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--models", nargs="+", choices=names, default=["mlp", "bert", "resnet50"]
    )
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    # TensorFlow takes gradients of one model for those of another in the same process:
    # its collectives are numbered anew in each strategy.
    with ProcessPoolExecutor(
        1, get_context("spawn"), max_tasks_per_child=1
    ) as processes:
        tables = processes.map(rows_of, options.models, repeat(options.rounds))
        rows = list(chain.from_iterable(tables))
    table = markdown_table(_TITLES, [cells for cells, _ in rows])
    publish(
        "replicas",
        f"{table}\n\n{_LEGEND}",
        {", ".join(cells[:3]): samples for cells, samples in rows},
        rounds=options.rounds,
        is_whole=not options.dry,
    )


if __name__ == "__main__":
    main()
