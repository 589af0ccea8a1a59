"""Latency of exported models: python -m benchmarks.serving.

Each model is exported as it is and under Keras' mixed policy, and converted by tf-amp
for each size of a batch. Fresh processes take turns in calling the signatures.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.announcing import Announce, announcing
from benchmarks.catalog import entry
from benchmarks.processes import worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish

_MODELS = ("resnet50", "bert")
_BATCHES = (1, 8, 32)
_TITLES = (
    "model",
    "batch",
    "float32 ms",
    "A/A",
    "Keras policy",
    "TensorFlow",
    "tf-amp",
)
_EXPLANATION = (
    "Latency of a call of the signature: float32 in milliseconds, the others as shares "
    "of it (below 1 is faster), each the median over the rounds of the ratio within a "
    "round. *tf-amp*: converted for that size of batch; TensorFlow alone runs it."
)

# Milliseconds by variant, one per round.
Figures = dict[tuple[str, int], dict[str, list[float]]]


@dataclass(frozen=True)
class Served:
    """A folder that is called, and what is switched on meanwhile."""

    title: str
    folder: Path
    variant: str = "float32"


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on serving."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--models", type=lambda t: tuple(t.split(",")), default=_MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    figures: Figures = {}
    turns = 5 * options.rounds * len(_BATCHES)
    total = len(options.models) * (2 + len(_BATCHES) + turns)
    with announcing(total) as announce, tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            _measure(model, Path(folder), options, figures, announce)
    publish(
        "serving",
        markdown(figures),
        {f"{model}, batch {batch}": times for (model, batch), times in figures.items()},
        rounds=options.rounds,
        is_whole=options.models == _MODELS,
    )


def _measure(
    model: str,
    folder: Path,
    options: argparse.Namespace,
    figures: Figures,
    announce: Announce,
) -> None:
    plain, policy = folder / model, folder / f"{model}_policy"
    for name, path in (("float32", plain), ("keras", policy)):
        announce(f"exporting {model}, {name}")
        run_worker("export", model, name, str(path))
    for batch in _BATCHES:
        announce(f"converting {model} for {batch}")
        converted = folder / f"{model}_{batch}"
        run_worker("convert", str(plain), str(converted), "--batch", str(batch))
        served = (
            Served("float32", plain),
            Served("A/A", plain),
            Served("Keras policy", policy),
            Served("TensorFlow", plain, "builtin"),
            Served("tf-amp", converted),
        )
        times = figures.setdefault((model, batch), {each.title: [] for each in served})
        for number in range(options.rounds):
            first = number % len(served)
            for each in served[first:] + served[:first]:
                announce(f"{model}, batch {batch}, {each.title}")
                seconds = _serve(each, batch, options.seconds)
                times[each.title].append(1e3 * seconds)


def _serve(served: Served, batch: int, seconds: float) -> float:
    found = run_worker(
        "serve",
        str(served.folder),
        served.variant,
        "--batches",
        str(batch),
        "--seconds",
        str(seconds),
    )
    return found[str(batch)]


def run_worker(*arguments: str) -> dict[str, float]:
    """Return what a worker prints.

    Raises:
        RuntimeError: it failed; the message has the end of its errors.
    """
    lines = worker_lines("serving_worker", *arguments)
    found: dict[str, float] = json.loads(lines[-1])
    return found


def markdown(figures: Figures) -> str:
    """Return the table with what its columns mean."""
    rows = [_cells(model, batch, times) for (model, batch), times in figures.items()]
    return f"{markdown_table(_TITLES, rows)}\n\n{_EXPLANATION}"


def _cells(model: str, batch: int, times: dict[str, list[float]]) -> tuple[str, ...]:
    float32 = times["float32"]
    shares = (
        median(ms / base for ms, base in zip(found, float32, strict=True))
        for title, found in times.items()
        if title != "float32"
    )
    cells = (f"{share:.2f}" for share in shares)
    return (entry(model).title, str(batch), f"{median(float32):.1f}", *cells)


if __name__ == "__main__":
    main()
