"""Memory of training steps, and the largest batch: python -m benchmarks.memory.

Each figure is of a fresh process whose tensors come from TensorFlow's best-fit
allocator, which counts them and keeps to a limit; by default CPUs have another one.
What saving memory costs is timed in turns, by two processes that live at once.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import tensorflow as tf

from benchmarks.announcing import Announce, announcing
from benchmarks.catalog import entry, subset_of, variant
from benchmarks.living import LivingProcess, only_answers, take_turns, time_as_told
from benchmarks.machine import this_machine
from benchmarks.processes import worker_environment, worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import RAW, publish
from benchmarks.steps import build_model, seconds_of, step_of
from benchmarks.variants import switch_on
from tf_amp.config.amp_config import DEVICE_PROFILE
from tf_amp.tools.bench.largest import MEBI, NEAR, largest_batch
from tf_amp.tools.bench.record import limited_to

_NAME = "memory"
# MiB that tensors may take.
_LIMITS = {"resnet50": 1000, "u_net": 600, "bert": 1500, "gpt": 800}
_MODELS = tuple(_LIMITS)
# Without tuning, since a comparison of steps holds what both of them take.
_VARIANTS = ("float32", "keras", "builtin", "untuned", "save")
_OURS, _SAVING, _POLICY = "untuned", "save", "keras"
_PEERS = ("float32", _POLICY, "builtin")
_AIM = 1.05
# Memory hangs on the plan, and that on the CPU: where its products do not gain in 16
# bits, the plan is one for a CPU whose do.
_PROFILE = "cpu-avx512-bf16"
DEVICE = "CPU:0"
_STEPS = 2
_LONGEST_START_SECONDS = 300.0
_MEGA = 1e6
# Some of TensorFlow's code does not ask whether it was given what it asked for, and is
# ended by a signal.
_NO_ROOM = re.compile(r"ResourceExhausted|OOM when|^memory failed \(-")
_TITLES = (
    "model",
    "variant",
    "allocated MB",
    "of Keras' policy",
    "MiB at most",
    "largest batch",
    "of float32",
    "items/s there",
)
# Of the table in README and docs/costs.md.
_SHORT_TITLES = (
    "largest batch",
    "MiB",
    "float32",
    "Keras' policy",
    "TensorFlow's pass",
    "tf-amp",
    "`TF_AMP_MEMORY=save`",
    "time of a step over the default's",
)


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one process took.

    Attributes:
      held: bytes of tensors between steps: variables and inputs.
      allocated: most bytes of tensors at once in a later step, these included.
      seconds: of the fastest of some later steps.
    """

    held: int
    allocated: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Row:
    """What one variant of a model takes.

    Attributes:
      figures: with the model's own batch.
      mebibytes: that tensors may take.
      batch: the largest with which they do.
      there: figures with that batch.
      seconds: of a step with the largest batch of tf-amp's default, in turns with
        others; empty where that is not timed.
    """

    figures: Figures
    mebibytes: int
    batch: int
    there: Figures
    seconds: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Examples per second, with the largest batch."""
        return self.batch / self.there.seconds


Rows = Mapping[tuple[str, str], Row]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each process")
    parser.add_argument("--seconds", type=float, default=4.0, help="timed per turn")
    parser.add_argument("--models", type=subset_of(_MODELS), default=_MODELS)
    parser.add_argument(
        "--worker", nargs=3, metavar=("MODEL", "VARIANT", "BATCH"), help="one process"
    )
    options = parser.parse_args()
    if options.worker:
        name, chosen, batch = options.worker
        _work(name, chosen, int(batch))
        return
    rows: dict[tuple[str, str], Row] = {}
    with announcing() as announce:
        for model in options.models:
            found = {name: _row(model, name, announce) for name in _VARIANTS}
            timed = (_OURS, _SAVING)
            announce(f"{model}, in turns")
            seconds = _in_turns(
                model, timed, found[_OURS].batch, options.rounds, options.seconds
            )
            for name, each in zip(timed, seconds, strict=True):
                found[name] = dataclasses.replace(found[name], seconds=each)
            rows |= {(model, name): row for name, row in found.items()}
    publish(
        _NAME,
        markdown(rows),
        {", ".join(key): dataclasses.asdict(row) for key, row in rows.items()},
        rounds=options.rounds,
        is_whole=options.models == _MODELS,
    )


def _row(model: str, name: str, announce: Announce) -> Row:
    """Measure a variant with the model's own batch, and look for its largest."""
    own, limit = entry(model).train_batch, _LIMITS[model]
    announce(f"{model}, {name}")
    first = _run(model, name, own, None)
    assert first is not None
    figures = {0: first, own: first}

    def taken(batch: int) -> int | None:
        announce(f"{model}, {name}, batch {batch}")
        run = _run(model, name, batch, limit)
        if run is None:
            return None
        figures[batch] = run
        return run.allocated

    known = {0: first.held, own: first.allocated}
    batch = largest_batch(taken, limit * MEBI, own, known)
    return Row(first, limit, batch, figures[batch])


def _run(model: str, name: str, batch: int, limit: int | None) -> Figures | None:
    """Return what a process took; None if its tensors had no room.

    Args:
      model: its name.
      name: of the variant.
      batch: examples in a step.
      limit: MiB that tensors may take; None for no limit.
    """
    words = (_NAME, "--worker", model, name, str(batch))
    try:
        lines = worker_lines(*words, environment=environment(limit))
        return Figures(**json.loads(lines[-1]))
    except RuntimeError as error:
        if limit is None or not _NO_ROOM.search(str(error)):
            raise
        return None


def environment(limit: int | None) -> dict[str, str]:
    """Return that of a process with the best-fit allocator, limited in MiB."""
    own = {} if this_machine().has_low_units else {DEVICE_PROFILE: _PROFILE}
    return worker_environment() | own | limited_to(limit)


def _in_turns(
    model: str, names: Sequence[str], batch: int, rounds: int, seconds: float
) -> list[list[float]]:
    """Return the seconds of a step, of each variant round by round."""
    processes = list[LivingProcess]()
    try:
        for name in names:
            words = ("--worker", model, name, str(batch))
            process = LivingProcess(_NAME, words, environment(None))
            processes.append(process)
            if not process.first_line(_LONGEST_START_SECONDS):
                raise RuntimeError(f"{model}, {name}: {process.failure()}")
        take_turns(processes, rounds=rounds, seconds=seconds)
        return [process.seconds for process in processes]
    finally:
        for process in processes:
            process.end()


def _work(name: str, chosen: str, batch: int) -> None:
    """Train some steps in this process, say what they took, and go on as told."""
    answers = only_answers()
    switch_on(variant(chosen).method)
    model_entry = entry(name).with_batch(batch)
    model = build_model(model_entry)
    step = step_of(model, model_entry, "train")
    for _ in range(_STEPS):
        step()
    tf.config.experimental.reset_memory_stats(DEVICE)
    held = tf.config.experimental.get_memory_info(DEVICE)["current"]
    seconds = min(seconds_of(step) for _ in range(_STEPS))
    allocated = tf.config.experimental.get_memory_info(DEVICE)["peak"]
    figures = Figures(held, allocated, seconds)
    print(json.dumps(dataclasses.asdict(figures)), file=answers, flush=True)
    time_as_told(step, tf.test.experimental.sync_devices, answers)


def markdown(rows: Rows) -> str:
    """Return the table, what its columns mean, and what follows from it."""
    explanation = (
        "*allocated*: most that tensors take at once in a training step, weights and "
        "the optimizer's state included, as TensorFlow's allocator counts it. "
        "*largest batch*: that trains with tensors of so many *MiB at most*, within "
        f"{NEAR:.0%}, and *items/s there* the examples per second of its fastest step. "
        "tf-amp runs without tuning: while steps are compared, both of them have their "
        "memory."
    )
    table = markdown_table(_TITLES, [_cells(*key, rows) for key in rows])
    models = dict.fromkeys(model for model, _ in rows)
    lines = "\n".join(line for model in models for line in _conclusions(model, rows))
    return "\n\n".join((table, explanation, lines))


def _cells(model: str, name: str, rows: Rows) -> tuple[str, ...]:
    row = rows[model, name]
    policy = rows[model, _POLICY].figures.allocated
    ratio = row.batch / max(rows[model, "float32"].batch, 1)
    return (
        entry(model).title,
        variant(name).title if name != _OURS else "tf-amp",
        f"{row.figures.allocated / _MEGA:.0f}",
        f"{row.figures.allocated / policy:.2f}",
        str(row.mebibytes),
        str(row.batch),
        f"{ratio:.2f}",
        f"{row.rate:.3g}",
    )


def _conclusions(model: str, rows: Rows) -> Iterator[str]:
    title = entry(model).title
    allocated = _of(model, rows, lambda row: row.figures.allocated)
    batches = _of(model, rows, lambda row: row.batch)
    words = "at most" if allocated[_OURS] <= _AIM * allocated[_POLICY] else "more than"
    yield f"- {title}: {words} {_AIM} times what Keras' policy takes."
    best = max(_PEERS, key=batches.__getitem__)
    ratios = _ratios(rows[model, _SAVING].seconds, rows[model, _OURS].seconds)
    yield (
        f"- {title}: where memory is saved, tensors take "
        f"{allocated[_SAVING] / allocated[_OURS]:.2f} times as much as by default, and "
        f"a step {median(ratios):.2f} times as long ({ratios[0]:.2f} to "
        f"{ratios[-1]:.2f}). The largest batch is {batches[_SAVING]}, that of the best "
        f"peer {batches[best]} ({variant(best).title})."
    )


def comparison(folder: Path = RAW) -> str:
    """Return the table that README and docs show, of what was measured last."""
    samples = json.loads((folder / f"{_NAME}.json").read_text())["samples"]
    rows = []
    for model, limit in _LIMITS.items():
        each = [samples[f"{model}, {name}"] for name in _VARIANTS]
        ratios = _ratios(each[-1]["seconds"], each[-2]["seconds"])
        time = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        batches = (str(row["batch"]) for row in each)
        rows.append((entry(model).title, str(limit), *batches, time))
    return markdown_table(_SHORT_TITLES, rows)


def _ratios(seconds: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return ratios of steps in the same turns, the lowest first."""
    return sorted(a / b for a, b in zip(seconds, others, strict=True))


def _of(model: str, rows: Rows, figure: Callable[[Row], int]) -> dict[str, int]:
    """Return a figure of each variant of a model."""
    return {name: figure(row) for (each, name), row in rows.items() if each == model}


if __name__ == "__main__":
    main()
