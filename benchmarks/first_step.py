"""From a job's start to the end of its first step: python -m benchmarks.first_step.

Fresh processes take turns: float32 twice, tf-amp without tuning, with it and an
empty cache, and once more with what this has left behind.
"""

import argparse
import json
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.announcing import Announce, announcing
from benchmarks.benches import job_of
from benchmarks.catalog import DEMO_MODELS, MODELS, MODES, entry, variant
from benchmarks.report import markdown_table
from benchmarks.results import RAW, publish
from tf_amp.tools.bench.job import Run
from tf_amp.tools.bench.journal import Sample
from tf_amp.tools.bench.record import sample_of_run

# What is run in a round, in this order: the title of its column, and the variant.
_KINDS = (
    ("float32", "float32"),
    ("A/A", "again"),
    ("tuning off", "untuned"),
    ("empty cache", "ours"),
    ("warm cache", "ours"),
)
_OTHERS = tuple(kind for kind, _ in _KINDS[1:])
_TITLES = ("model", "mode", "float32 s", *_OTHERS, "16 bits", "steps until repaid")
_EXPLANATION = (
    "*float32 s*: seconds from the start of the process to the end of its first step, "
    "with importing TensorFlow, building the model, tracing and optimizing; median of "
    "the rounds. The next columns: what is beyond that, as a share of it; A/A is "
    "float32 again, the noise. A job pays it once per graph, however long it runs. The "
    "demo's models are those of `make demo`, with its batches. *16 bits*: operations "
    "of the executed graph. *steps until repaid*: steps after which what an empty "
    "cache costs beyond float32 is won back; -: no step is faster."
)


class Figure(NamedTuple):
    """What one process took.

    Attributes:
      first: seconds from its start to the end of its first step.
      later: seconds of a later step, the median.
      low_ops: operations of the executed graph in 16 bits.
    """

    first: float
    later: float
    low_ops: int


# By kind, model and mode: one per round.
Figures = dict[tuple[str, str, str], list[Figure]]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on the first step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_step")
    names = [model.name for model in (*DEMO_MODELS, *MODELS)]
    parser.add_argument("--models", type=lambda text: text.split(","), default=names)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures: Figures = {}
    total = len(options.models) * options.rounds * len(_KINDS) * len(MODES)
    with announcing(total) as announce:
        for model in options.models:
            for number in range(options.rounds):
                for mode in MODES:
                    _run_round(model, mode, number, figures, announce)
    table = markdown(figures)
    publish(
        "first_step",
        table,
        {", ".join(key): rounds for key, rounds in figures.items()},
        rounds=options.rounds,
        is_whole=options.models == names,
    )


def caption(folder: Path = RAW) -> str:
    """Return what the README says of it, in lines as they stand there."""
    kept = json.loads((folder / "first_step.json").read_text())["samples"]
    figures: Figures = {}
    for text, rounds in kept.items():
        kind, model, mode = text.split(", ")
        figures[kind, model, mode] = [Figure(*each) for each in rounds]
    keys = tuple(dict.fromkeys(key[1:] for key in figures))
    empty, warm = (
        median(_beyond(figures, kind, *key) for key in keys)
        for kind in ("empty cache", "warm cache")
    )
    return (
        f"{empty:.0%} later in the median of\n{len(keys)} graphs, and {warm:.0%} later "
        "when an earlier run has timed the same steps"
    )


def _run_round(
    model: str,
    mode: str,
    number: int,
    figures: Figures,
    announce: Announce,
) -> None:
    methods = {name: variant(name).method for _, name in _KINDS}
    job = job_of(model, mode, [*methods.values()], seconds=1.0, learns=False)
    with tempfile.TemporaryDirectory() as folder:
        for kind, name in _KINDS:
            announce(f"{model}, {mode}, {kind}")
            run = Run(methods[name], job.batches[0], number)
            sample = sample_of_run(job, run, Path(folder), threading.Event())
            figures.setdefault((kind, model, mode), []).append(_figure(model, sample))


def _figure(model: str, sample: Sample) -> Figure:
    if sample.failure:
        raise RuntimeError(f"{model}, {sample}")
    assert sample.first_step_seconds is not None and sample.ops is not None
    return Figure(sample.first_step_seconds, sample.seconds, sample.ops.low)


def markdown(figures: Figures) -> str:
    """Return the table, what its columns mean, and what follows from it."""
    keys = tuple(dict.fromkeys(key[1:] for key in figures))
    cells = [_cells(figures, model, mode) for model, mode in keys]
    lines = (f"- {kind}: {_conclusion(figures, kind, keys)}" for kind in _OTHERS)
    table = markdown_table(_TITLES, cells)
    return "\n\n".join((table, _EXPLANATION, "\n".join(lines)))


def _cells(figures: Figures, model: str, mode: str) -> tuple[str, ...]:
    later = {kind: _median(figures[kind, model, mode], "later") for kind, _ in _KINDS}
    gain = later["float32"] - later["empty cache"]
    first = _median(figures["float32", model, mode], "first")
    lost = first * _beyond(figures, "empty cache", model, mode)
    return (
        entry(model).title,
        mode,
        f"{first:.2f}",
        *(f"{_beyond(figures, kind, model, mode):+.0%}" for kind in _OTHERS),
        str(_low_ops(figures, model, mode)),
        f"{max(lost, 0) / gain:.0f}" if gain > 0.02 * later["float32"] else "-",
    )


def _conclusion(figures: Figures, kind: str, keys: Sequence[tuple[str, str]]) -> str:
    """Say what a kind adds to float32's time: in the middle, and where in vain."""
    beyond = {key: _beyond(figures, kind, *key) for key in keys}
    text = f"{median(beyond.values()):+.1%} in the median of {len(keys)} rows"
    same = [beyond[key] for key in keys if not _low_ops(figures, *key)]
    if same and kind != "A/A":
        text += f", {median(same):+.1%} of the {len(same)} that stay float32"
    return f"{text}."


def _beyond(figures: Figures, kind: str, model: str, mode: str) -> float:
    """Return what a kind takes beyond float32, as a share of that."""
    ours, float32 = (
        _median(figures[each, model, mode], "first") for each in (kind, "float32")
    )
    return ours / float32 - 1.0


def _low_ops(figures: Figures, model: str, mode: str) -> int:
    return int(_median(figures["empty cache", model, mode], "low_ops"))


def _median(rounds: Sequence[Figure], field: str) -> float:
    return median(getattr(each, field) for each in rounds)


if __name__ == "__main__":
    main()
