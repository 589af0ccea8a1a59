"""Memory of training steps, and the largest batch: python -m benchmarks.memory.

Each figure is of a fresh process whose tensors come from TensorFlow's best-fit
allocator, which counts them and keeps to a limit; by default CPUs have another one.
"""

import argparse
import dataclasses
import json
import re
import resource
from collections.abc import Iterator, Sequence
from statistics import median

import tensorflow as tf

from benchmarks.announcing import Announce, announcing
from benchmarks.catalog import entry, variant
from benchmarks.processes import worker_environment, worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import build_model, seconds_of, step_of
from benchmarks.variants import switch_on
from tf_amp.config.amp_config import DEVICE_PROFILE
from tf_amp.tools.bench.largest import MEBI, NEAR, largest_batch
from tf_amp.tools.bench.record import limited_to

_MODELS = ("resnet50", "u_net", "bert", "gpt")
# Without tuning, since a comparison of steps holds what both of them take.
_VARIANTS = ("float32", "keras", "builtin", "untuned", "save")
_OURS, _SAVING, _POLICY = "untuned", "save", "keras"
_AIM = 1.05
# Memory hangs on the plan, and that on the CPU: one whose products gain in 16 bits.
_PROFILE = "cpu-avx512-bf16"
DEVICE = "CPU:0"
_STEPS = 2
_MEGA = 1e6
# Some of TensorFlow's code does not ask whether it was given what it asked for, and is
# ended by a signal.
_NO_ROOM = re.compile(r"ResourceExhausted|OOM when|^memory failed \(-")
_TITLES = (
    "model",
    "variant",
    "allocated MB",
    "of Keras' policy",
    "resident MB",
    "of Keras' policy",
    "largest batch",
    "of float32",
    "items/s there",
)


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one process took.

    Attributes:
      allocated: most bytes of tensors at once in a later step, weights included.
      resident: most bytes of the whole process at once.
      seconds: of the fastest of some later steps.
    """

    allocated: int
    resident: int
    seconds: float


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--mebibytes", type=int, default=1500, help="limit of a batch")
    parser.add_argument(
        "--models", type=lambda text: tuple(text.split(",")), default=_MODELS
    )
    parser.add_argument(
        "--worker", nargs=3, metavar=("MODEL", "VARIANT", "BATCH"), help="one process"
    )
    options = parser.parse_args()
    if options.worker:
        name, chosen, batch = options.worker
        print(json.dumps(dataclasses.asdict(_trained(name, chosen, int(batch)))))
        return
    figures: dict[tuple[str, str], list[Figures]] = {}
    batches: dict[tuple[str, str], tuple[int, Figures]] = {}
    with announcing() as announce:
        for model in options.models:
            for number in range(options.rounds):
                for name in _VARIANTS:
                    announce(f"{model}, {name}, round {number + 1}")
                    batch = entry(model).train_batch
                    found = _run(model, name, batch, None)
                    assert found is not None
                    figures.setdefault((model, name), []).append(found)
            for name in _VARIANTS:
                batches[model, name] = _largest(
                    model, name, options.mebibytes, figures[model, name][0], announce
                )
    publish(
        "memory",
        markdown(figures, batches, options.mebibytes),
        {
            f"{model}, {name}": {
                "processes": [dataclasses.asdict(each) for each in rounds],
                "largest batch": batches[model, name][0],
                "items/s": _rate(*batches[model, name]),
            }
            for (model, name), rounds in figures.items()
        },
        rounds=options.rounds,
        is_whole=options.models == _MODELS,
    )


def _run(model: str, name: str, batch: int, limit: int | None) -> Figures | None:
    """Return what a process took; None if its tensors had no room.

    Args:
      model: its name.
      name: of the variant.
      batch: examples in a step.
      limit: MiB that tensors may take; None for no limit.
    """
    words = ("memory", "--worker", model, name, str(batch))
    try:
        lines = worker_lines(*words, environment=environment(limit))
        return Figures(**json.loads(lines[-1]))
    except RuntimeError as error:
        if limit is None or not _NO_ROOM.search(str(error)):
            raise
        return None


def environment(limit: int | None) -> dict[str, str]:
    """Return that of a process with the best-fit allocator, limited in MiB."""
    own = {DEVICE_PROFILE: _PROFILE, **limited_to(limit)}
    return worker_environment() | own


def _largest(
    model: str, name: str, limit: int, found: Figures, announce: Announce
) -> tuple[int, Figures]:
    """Return the largest batch that trains within a limit, and what it takes."""
    first = entry(model).train_batch
    figures = {0: found}

    def taken(batch: int) -> int | None:
        announce(f"{model}, {name}, batch {batch}")
        run = _run(model, name, batch, limit)
        if run is None:
            return None
        figures[batch] = run
        return run.allocated

    largest = largest_batch(taken, limit * MEBI, first, found.allocated)
    return largest, figures[largest]


def _trained(name: str, chosen: str, batch: int) -> Figures:
    """Train some steps in this process and return what they took."""
    switch_on(variant(chosen).method)
    model_entry = entry(name).with_batch(batch)
    model = build_model(model_entry)
    step = step_of(model, model_entry, "train")
    for _ in range(_STEPS):
        step()
    tf.config.experimental.reset_memory_stats(DEVICE)
    seconds = min(seconds_of(step) for _ in range(_STEPS))
    return Figures(
        seconds=seconds,
        allocated=tf.config.experimental.get_memory_info(DEVICE)["peak"],
        resident=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def markdown(
    figures: dict[tuple[str, str], list[Figures]],
    batches: dict[tuple[str, str], tuple[int, Figures]],
    mebibytes: int,
) -> str:
    """Return the table, what its columns mean, and what follows from it."""
    rows = [_cells(model, name, figures, batches) for model, name in figures]
    explanation = (
        "*allocated*: most that tensors take at once in a training step, weights and "
        "the optimizer's state included, as TensorFlow's allocator counts it. "
        "*resident*: most of the whole process, building and tracing included. "
        f"*largest batch*: that trains with tensors of {mebibytes} MiB at most, within "
        f"{NEAR:.0%}, and *items/s there* the examples per second of its fastest step. "
        "tf-amp runs without tuning: while steps are compared, both of "
        f"them have their memory; its plans are those for {_PROFILE}."
    )
    models = dict.fromkeys(model for model, _ in figures)
    lines = "\n".join(_conclusions(models, figures))
    return "\n\n".join((markdown_table(_TITLES, rows), explanation, lines))


def _cells(
    model: str,
    name: str,
    figures: dict[tuple[str, str], list[Figures]],
    batches: dict[tuple[str, str], tuple[int, Figures]],
) -> tuple[str, ...]:
    cells = []
    for field in ("allocated", "resident"):
        bytes_taken = _median(figures[model, name], field)
        policy = _median(figures[model, _POLICY], field)
        cells += [f"{bytes_taken / _MEGA:.0f}", f"{bytes_taken / policy:.2f}"]
    largest, there = batches[model, name]
    ratio = largest / max(batches[model, "float32"][0], 1)
    return (
        entry(model).title,
        variant(name).title if name != _OURS else "tf-amp",
        *cells,
        str(largest),
        f"{ratio:.2f}",
        f"{_rate(largest, there):.3g}",
    )


def _rate(batch: int, figures: Figures) -> float:
    return batch / figures.seconds


def _conclusions(
    models: Sequence[str] | dict[str, None],
    figures: dict[tuple[str, str], list[Figures]],
) -> Iterator[str]:
    for model in models:
        ours, policy = (
            _median(figures[model, name], "allocated") for name in (_OURS, _POLICY)
        )
        words = "at most" if ours <= _AIM * policy else "more than"
        yield f"- {entry(model).title}: {words} {_AIM} times what Keras' policy takes."
        pairs = [
            [_median(figures[model, name], field) for name in (_SAVING, _OURS)]
            for field in ("allocated", "seconds")
        ]
        less, longer = (saving / ours for saving, ours in pairs)
        yield (
            f"- {entry(model).title}: where memory is saved, tensors take {less:.2f} "
            f"times as much, and a step {longer:.2f} times as long."
        )


def _median(rounds: Sequence[Figures], field: str) -> float:
    return median(getattr(each, field) for each in rounds)


if __name__ == "__main__":
    main()
