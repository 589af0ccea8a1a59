"""The chart of the scaling model; needs matplotlib, the extra `plots`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.scaling import DEVICES, DGX1, MODELS, Model

# Distinguishable in gray and by color-blind readers: (color, line, words).
_FLOAT32 = ("#555555", "-", "float32")
_MIXED = ("#0072b2", "-", "mixed, gradients in float32")
_LOW = ("#d55e00", "--", "mixed, gradients in 16 bits")
_PUBLISHED = "published"


def draw(path: Path) -> None:
    """Draw speed-ups above efficiencies, a column per model."""
    figure, rows = plt.subplots(
        2, len(MODELS), figsize=(11, 6.2), sharex=True, layout="constrained"
    )
    for model, top, bottom in zip(MODELS, *rows, strict=True):
        _draw_speed_up(top, model)
        _draw_efficiency(bottom, model)
    rows[0][0].set_ylabel("mixed over float32")
    rows[1][0].set_ylabel("items/s per device,\nshare of one device's")
    handles, labels = rows[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("Mixed precision on many V100, by a ring all-reduce model")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_speed_up(axes: Axes, model: Model) -> None:
    host = model.host_seconds(DGX1)
    for low, (color, line, _) in ((False, _MIXED), (True, _LOW)):
        _plot(
            axes,
            lambda n, low=low: model.speed_up(n, DGX1, low=low, host=host),
            color=color,
            line=line,
        )
    ratios = [model.one[1] / model.one[0], model.eight[1] / model.eight[0]]
    axes.plot([1, 8], ratios, "o", color="black", mfc="white", zorder=3)
    axes.axhline(1, color="#bbbbbb", lw=0.8)
    axes.set_title(model.name)
    axes.set_ylim(0.9, max(ratios) * 1.08)


def _draw_efficiency(axes: Axes, model: Model) -> None:
    host = model.host_seconds(DGX1)
    ways = ((False, False, _FLOAT32), (True, False, _MIXED), (True, True, _LOW))
    for mixed, low, (color, line, words) in ways:

        def efficiency(n: int, mixed: bool = mixed, low: bool = low) -> float:
            rate = model.rate(n, DGX1, mixed=mixed, low=low, host=host)
            return rate / n / model.one[mixed]

        _plot(axes, efficiency, color=color, line=line, label=words)
    for mixed, color in ((False, _FLOAT32[0]), (True, _MIXED[0])):
        share = model.eight[mixed] / 8 / model.one[mixed]
        label = None if mixed else _PUBLISHED
        axes.plot([8], [share], "o", color=color, mfc="white", zorder=3, label=label)
    axes.set_ylim(0, 1.12)
    axes.set_xlabel("devices")


def _plot(
    axes: Axes,
    value: Callable[[int], float],
    *,
    color: str,
    line: str,
    label: str | None = None,
    devices: Sequence[int] = DEVICES,
) -> None:
    axes.plot(
        devices, [value(n) for n in devices], line, color=color, label=label, lw=1.8
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 8, 64, 1024], ["1", "8", "64", "1,024"])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
