"""Our models beside PyTorch's: ``python -m benchmarks.peers``.

PyTorch comes with ``pip install '.[peers]'``. The processes of a row live at once and
are timed one at a time, in turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

import numpy as np

from benchmarks.announcing import announcing
from benchmarks.catalog import MODES, entry, subset_of
from benchmarks.living import LivingProcess, take_turns
from benchmarks.peers_worker import AUTOCAST, COMPILED, PRODUCTS
from benchmarks.processes import worker_environment
from benchmarks.report import markdown_table
from benchmarks.results import publish
from tf_amp.tools.bench.job import FLOAT32, KERAS, OURS, TENSORFLOW


class Way(NamedTuple):
    """A framework with a method, and the title of its column."""

    framework: str
    method: str
    title: str


_MODELS = ("resnet50", "bert", "lstm", "mlp")
WAYS = (
    Way("torch", FLOAT32, "PyTorch float32"),
    Way("torch", AUTOCAST, "autocast"),
    Way("torch", COMPILED, "autocast, compiled"),
    Way("tensorflow", FLOAT32, "TensorFlow float32"),
    Way("tensorflow", KERAS, "Keras policy"),
    Way("tensorflow", TENSORFLOW, "TensorFlow's pass"),
    Way("tensorflow", OURS, "tf-amp"),
)
_LIMIT = Way("tensorflow", PRODUCTS, "products alone")
_PYTORCH = tuple(way.title for way in WAYS if way.framework == "torch")
_TENSORFLOW = tuple(way.title for way in WAYS if way.framework != "torch")[:-1]
_OURS = WAYS[-1].title
_LONGEST_START_SECONDS = 300.0
_TITLES = (
    "model",
    *(way.title for way in WAYS),
    _LIMIT.title,
    "their share in tf-amp",
    "speed over TensorFlow's best",
    "speed over PyTorch's best",
)
_EXPLANATION = (
    "Milliseconds per step, medians over the rounds. *autocast*: in bfloat16; "
    "*compiled*: by `torch.compile`. *products alone*: what all matrix products and "
    "convolutions of a step take at the rate of a product of 1024 x 1024 matrices in "
    "bfloat16, timed in the same turns. *speed over*: how many times as fast tf-amp is "
    "as the fastest of the others in the same round; the median over the rounds, in "
    "brackets the lowest and the highest. All use as many threads."
)

# Seconds of each column, round by round; by model and mode.
Figures = Mapping[tuple[str, str], Mapping[str, Sequence[float]]]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on other frameworks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--models", type=subset_of(_MODELS), default=_MODELS)
    parser.add_argument("--modes", type=subset_of(MODES), default=MODES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="timed per turn")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("PyTorch is not installed: pip install '.[peers]'")
    keys = [(model, mode) for model in options.models for mode in options.modes]
    figures, versions, ways = {}, set[str](), (*WAYS, _LIMIT)
    with announcing(len(keys) * (len(ways) + 1)) as announce:
        for model, mode in keys:
            processes, told = [], []
            try:
                for way in ways:
                    announce(f"{model}, {mode}, {way.title}")
                    words = (model, mode, way.framework, way.method)
                    process = LivingProcess("peers_worker", words, worker_environment())
                    processes.append(process)
                    told.append(process.first_line(_LONGEST_START_SECONDS).strip())
                announce(f"{model}, {mode}, in turns")
                take_turns(processes, rounds=options.rounds, seconds=options.seconds)
                for way, process in zip(ways, processes, strict=True):
                    if failure := process.failure():
                        sys.exit(f"{model}, {mode}, {way.title}: {failure}")
                *of_ways, products = told
                versions.update(of_ways)
                titles = (way.title for way in ways)
                kept = (process.seconds for process in processes)
                seconds = dict(zip(titles, kept, strict=True))
                alone = seconds[_LIMIT.title]
                seconds[_LIMIT.title] = [float(products) * each for each in alone]
                figures[model, mode] = seconds
            finally:
                for process in processes:
                    process.end()
    publish(
        "peers",
        f"{markdown(figures)}\n\nVersions: {', '.join(sorted(versions))}.",
        {", ".join(key): seconds for key, seconds in figures.items()},
        rounds=options.rounds,
        is_whole=(options.models, options.modes) == (_MODELS, MODES),
    )


def markdown(figures: Figures) -> str:
    """Return the table, what its columns mean, and what tf-amp comes to in all."""
    rows = [_cells(model, mode, by_way) for (model, mode), by_way in figures.items()]
    means = (
        geometric_mean(median(_speeds(by_way, titles)) for by_way in figures.values())
        for titles in (_TENSORFLOW, _PYTORCH)
    )
    told = "tf-amp is {:.2f} times as fast as TensorFlow's best and {:.2f} times as "
    told += f"fast as PyTorch's best (geometric means of {len(rows)} rows)."
    return "\n\n".join(
        (markdown_table(_TITLES, rows), _EXPLANATION, told.format(*means))
    )


def _cells(
    model: str, mode: str, by_way: Mapping[str, Sequence[float]]
) -> tuple[str, ...]:
    ratios = (_speeds(by_way, titles) for titles in (_TENSORFLOW, _PYTORCH))
    return (
        f"{entry(model).title}, {mode}",
        *(f"{1e3 * median(by_way[way.title]):.1f}" for way in (*WAYS, _LIMIT)),
        f"{median(np.divide(by_way[_LIMIT.title], by_way[_OURS])):.2f}",
        *(f"{median(r):.2f} ({min(r):.2f}-{max(r):.2f})" for r in ratios),
    )


def _speeds(
    by_way: Mapping[str, Sequence[float]], titles: Sequence[str]
) -> list[float]:
    """Return how many times as fast as the best of the others tf-amp is, by round."""
    best = np.min([by_way[title] for title in titles], axis=0)
    return [float(ratio) for ratio in best / np.asarray(by_way[_OURS])]


if __name__ == "__main__":
    main()
