"""The chart of the models, from the raw figures at hand.

    python -m benchmarks.speed_chart        writes docs/speed.png

A bar is the median of the rounds, its line the lowest and the highest of them.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.benches import Bench, mean_over_peers
from benchmarks.catalog import MODELS, entry
from benchmarks.context import Context
from benchmarks.results import RAW, benches_of, kept_models

CHART = RAW.parent.parent / "docs" / "speed.png"
# Distinguishable in gray and by color-blind readers.
_METHODS = {
    "keras": ("Keras' mixed_bfloat16", "#b8bfca"),
    "builtin": ("TensorFlow's pass", "#7c8aa0"),
    "ours": ("tf-amp", "#2a9d8f"),
}
_MODES = {"train": "training step", "infer": "inference"}
_WIDTH = 0.27
# Where lines of single rounds are cut off.
_HIGHEST = 2.9


def draw(path: Path = CHART, folder: Path = RAW) -> None:
    """Draw the speed-ups of each method over float32, training above inference."""
    context, benches = _figures(folder)
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.6), layout="constrained")
    for axis, (mode, title) in zip(axes, _MODES.items(), strict=True):
        _draw_mode(axis, [each for each in benches if each.mode == mode])
        axis.set_title(f"{title}, float32 = 1", loc="left", fontsize=10)
    machine = context.machine
    title = (
        f"{machine.cores} cores of an {machine.processor} with {machine.kind}, "
        f"{context.date}, {context.rounds} interleaved rounds"
    )
    figure.suptitle(title, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def caption(folder: Path = RAW) -> str:
    """Return what the README says of the chart, in lines as they stand there."""
    _, benches = _figures(folder)
    again = (each.row("again") for each in benches)
    noise = [row.speed_up.median for row in again if row and row.speed_up]
    return (
        "On this noisy machine float32 against\nitself reads "
        f"{min(noise):.2f} to {max(noise):.2f}. tf-amp over the better of the other "
        f"two: {mean_over_peers(benches):.2f} (geometric mean)."
    )


def _figures(folder: Path) -> tuple[Context, list[Bench]]:
    """Return what the models come to on which peers are compared, and where."""
    samples, context = kept_models(folder)
    names = [model.name for model in MODELS]
    return context, [each for each in benches_of(samples) if each.model in names]


def _draw_mode(axis: Axes, benches: Sequence[Bench]) -> None:
    for number, (method, (title, color)) in enumerate(_METHODS.items()):
        for place, bench in enumerate(benches):
            row = bench.row(method)
            if row is None or row.speed_up is None:
                continue
            found = row.speed_up
            at = place + (number - 1) * _WIDTH
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
