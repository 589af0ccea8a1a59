"""The chart of the models, from the raw figures at hand.

    python -m benchmarks.speed_chart        writes docs/speed.png

A bar is the median of the rounds, its line the lowest and the highest of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.catalog import MODELS, entry
from benchmarks.records import run_from_dict
from benchmarks.results import RAW
from benchmarks.summary import Row, mean_over_peers, rows_from_runs

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
    kept, rows = _figures(folder)
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.6), layout="constrained")
    for axis, (mode, title) in zip(axes, _MODES.items(), strict=True):
        _draw_mode(axis, [row for row in rows if row.mode == mode])
        axis.set_title(f"{title}, float32 = 1", loc="left", fontsize=10)
    machine = kept["context"]["machine"]
    title = (
        f"{machine['cores']} cores of an {machine['processor']} with "
        f"{machine['kind']}, {kept['context']['date']}, "
        f"{kept['context']['rounds']} interleaved rounds"
    )
    figure.suptitle(title, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def caption(folder: Path = RAW) -> str:
    """Return what the README says of the chart, in lines as they stand there."""
    _, rows = _figures(folder)
    noise = [cell.speed_up for row in rows if (cell := row.cell("again"))]
    return (
        "On this noisy machine float32 against\nitself reads "
        f"{min(noise):.2f} to {max(noise):.2f}. tf-amp over the better of the other "
        f"two: {mean_over_peers(rows):.2f} (geometric mean)."
    )


def _figures(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return what is kept, and the rows of the models that peers are compared on."""
    kept = json.loads((folder / "models.json").read_text())
    found = rows_from_runs([run_from_dict(fields) for fields in kept["runs"]])
    by_name = {(row.model, row.mode): row for row in found}
    order = [(model.name, mode) for model in MODELS for mode in _MODES]
    return kept, [by_name[key] for key in order if key in by_name]


def _draw_mode(axis: Axes, rows: Sequence[Row]) -> None:
    for number, (method, (title, color)) in enumerate(_METHODS.items()):
        for place, row in enumerate(rows):
            cell = row.cell(method)
            if cell is None or cell.speed_up is None:
                continue
            at = place + (number - 1) * _WIDTH
            label = title if place == 0 else None
            axis.bar(at, cell.speed_up, _WIDTH, label=label, color=color)
            axis.plot([at, at], [cell.lowest, cell.highest], "k-", lw=0.7)
    axis.axhline(1, color="black", lw=0.8)
    names = [entry(row.model).title.replace(" ", "\n", 1) for row in rows]
    axis.set_xticks(range(len(rows)), names, fontsize=9)
    axis.set_ylim(0, _HIGHEST)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw()
    print(caption())
