"""The chart of the models, from the raw figures at hand.

    python -m benchmarks.speed_chart        writes docs/speed.png

A bar is the median of the rounds, its line the lowest and the highest of them.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.benches import Bench, joined, mean_over_peers
from benchmarks.catalog import MODELS, entry
from benchmarks.context import Context
from benchmarks.results import BESIDE, RAW, benches_of, kept_models

CHART = RAW.parent.parent / "docs" / "speed.png"
# Distinguishable in gray and by color-blind readers.
_METHODS = {
    "keras": ("Keras' mixed_bfloat16", "#b8bfca"),
    "builtin": ("TensorFlow's pass", "#7c8aa0"),
    "ours": ("tf-amp", "#2a9d8f"),
    "fused": ("tf-amp in float32: fusions alone", "#e9c46a"),
}
_MODES = {"train": "training step", "infer": "inference"}
_WIDTH = 0.2
# Of the README.
_COLUMNS = 98
# Where lines of single rounds are cut off.
_HIGHEST = 2.9


def draw(path: Path = CHART, folder: Path = RAW) -> None:
    """Draw the speed-ups of each method over float32, training above inference."""
    context, benches = _figures(folder)
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.6), layout="constrained")
    for axis, (mode, title) in zip(axes, _MODES.items(), strict=True):
        _draw_mode(axis, [each for each in benches if each.mode == mode])
        axis.set_title(f"{title}, float32 = 1", loc="left", fontsize=10)
    rounds = _rounds(benches)
    title = f"{_machine(context)}, {context.date}, {rounds} interleaved rounds"
    figure.suptitle(title, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def caption(folder: Path = RAW) -> str:
    """Return what the README says of the chart, in lines as they stand there."""
    context, benches = _figures(folder)
    noise, fused = (_medians(benches, name) for name in ("again", "fused"))
    best = geometric_mean(
        1 / each.against_best for each in benches if each.against_best
    )
    text = (
        f"They were measured on {_machine(context)}. As a geometric mean over the "
        f"models, tf-amp is {mean_over_peers(benches):.2f} times as fast as the faster "
        "of Keras' policy and TensorFlow's pass. It is "
        f"{best:.2f} times as fast as the fastest of plain float32 and these two. "
        f"Fusions alone make float32 {geometric_mean(fused):.2f} times as fast. "
        f"Float32 timed against itself varies from {min(noise):.2f} to "
        f"{max(noise):.2f}, so a smaller difference says nothing."
    )
    return textwrap.fill(text, _COLUMNS, break_on_hyphens=False)


def _machine(context: Context) -> str:
    machine = context.machine
    return f"{machine.cores} cores of an {machine.processor} with {machine.kind}"


def _medians(benches: Sequence[Bench], name: str) -> list[float]:
    rows = (each.row(name) for each in benches)
    return [row.speed_up.median for row in rows if row and row.speed_up]


def _rounds(benches: Sequence[Bench]) -> str:
    """Return how many rounds the bars are of, the fewest and the most."""
    rows = (each.row(name) for each in benches for name in _METHODS)
    found = {row.rounds for row in rows if row}
    return " to ".join(str(number) for number in sorted({min(found), max(found)}))


def _figures(folder: Path) -> tuple[Context, list[Bench]]:
    """Return what the models come to on which peers are compared, and where."""
    samples, context = kept_models(folder)
    beside, _ = kept_models(folder, BESIDE)
    names = [model.name for model in MODELS]
    benches = joined(benches_of(samples), benches_of(beside))
    return context, [each for each in benches if each.model in names]


def _draw_mode(axis: Axes, benches: Sequence[Bench]) -> None:
    for number, (method, (title, color)) in enumerate(_METHODS.items()):
        for place, bench in enumerate(benches):
            row = bench.row(method)
            if row is None or row.speed_up is None:
                continue
            found = row.speed_up
            at = place + (number - (len(_METHODS) - 1) / 2) * _WIDTH
            label = title if place == 0 else None
            axis.bar(at, found.median, _WIDTH, label=label, color=color)
            axis.plot([at, at], [found.lowest, found.highest], "k-", lw=0.7)
    axis.axhline(1, color="black", lw=0.8)
    names = [entry(each.model).title.replace(" ", "\n", 1) for each in benches]
    axis.set_xticks(range(len(benches)), names, fontsize=9)
    axis.set_ylim(0, _HIGHEST)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw()
    print(caption())
