"""Seconds and memory of converting a stored model: python -m benchmarks.convert."""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.announcing import announcing
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.serving import run_worker

_WEIGHTS = ("float32", "low")
_MEGA = 1e6
_TITLES = ("weights", "MB", "MB after", "load s", "convert s", "peak MB", "times model")
_EXPLANATION = (
    "A SavedModel of dense layers. *convert*: reading and writing included. *peak*: of "
    "the process beyond what it holds once TensorFlow is imported, and that as a "
    "multiple of the model's size."
)


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on conversions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convert")
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {weights: [] for weights in _WEIGHTS}
    total = 1 + 2 * options.rounds
    with announcing(total) as announce, tempfile.TemporaryDirectory() as folder:
        announce("making the model")
        source = str(Path(folder) / "model")
        run_worker("weights", source, str(options.megabytes))
        for number in range(options.rounds):
            for weights in _WEIGHTS:
                announce(f"weights {weights}")
                target = str(Path(folder) / f"{weights}_{number}")
                run = run_worker("convert", source, target, "--weights", weights)
                found[weights].append(run)
    table = f"{markdown_table(_TITLES, _rows(found))}\n\n{_EXPLANATION}"
    publish("convert", table, found, rounds=options.rounds)


def _rows(found: dict[str, list[dict[str, float]]]) -> list[tuple[str, ...]]:
    return [_cells(weights, runs) for weights, runs in found.items()]


def _cells(weights: str, runs: list[dict[str, float]]) -> tuple[str, ...]:
    middle = {name: median(run[name] for run in runs) for name in runs[0]}
    beyond = middle["peak_bytes"] - middle["import_bytes"]
    return (
        weights,
        f"{middle['size'] / _MEGA:.0f}",
        f"{middle['size_after'] / _MEGA:.0f}",
        f"{middle['load_seconds']:.2f}",
        f"{middle['seconds']:.2f}",
        f"{beyond / _MEGA:.0f}",
        f"{beyond / middle['size']:.2f}",
    )


if __name__ == "__main__":
    main()
