"""Predicted against measured steps: ``python -m benchmarks.prediction``.

A fresh process per model plans the step as tf-amp does in any program, with the prices
of the device's profile, of which steps have corrected none, and then runs it in float32
and mixed in turn. A shared machine is not equally fast all the time; so there are
several rounds.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from benchmarks.announcing import announcing
from benchmarks.catalog import MODELS, MODES, entry
from benchmarks.processes import worker_environment, worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish

# What counts as right: a time within a fifth, a gain within ten points.
NEAR = 0.2
NEAR_POINTS = 10.0

_TITLES = (
    "model",
    "mode",
    "float32 predicted ms",
    "measured",
    "ratio",
    "mixed predicted ms",
    "measured",
    "ratio",
    "gain predicted %",
    "measured",
    "off by points",
)
_EXPLANATION = (
    "*ratio*: predicted over measured, **bold** where off by more than 20 %. *gain*: "
    "share of the float32 step that mixed precision saves, **bold** where off by more "
    "than 10 points. Medians of the rounds, in brackets the lowest and highest ratio "
    "of one round. *none*: the plan is empty, so both columns are float32. "
    "Predictions are sums over the nodes of a graph, what the executor takes for each, "
    "and what starting it takes; how ops overlap is left out."
)


@dataclass(frozen=True)
class Figures:
    """Seconds of a step in float32 and mixed, as predicted and as measured.

    ``low_slots`` is how many slots the plan moves to 16 bits, ``applied`` whether the
    program did run a changed graph.
    """

    model: str
    mode: str
    predicted: tuple[float, float]
    measured: tuple[float, float]
    low_slots: int
    applied: bool


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on predictions."""
    names = [model.name for model in MODELS]
    options = _parser(names).parse_args()
    figures: list[Figures] = []
    with announcing(options.rounds * len(options.models)) as announce:
        for _ in range(options.rounds):
            for name in options.models:
                announce(name)
                figures += _run(name, options.seconds, options.tune)
    publish(
        "prediction",
        markdown(figures),
        [asdict(each) for each in figures],
        rounds=options.rounds,
        is_whole=options.models == names,
    )


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prediction", description=__doc__
    )
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), default=list(names))
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=4.0, help="timed part of a mode")
    add("--tune", default="on", help="as TF_AMP_TUNE")
    return parser


def _run(name: str, seconds: float, tune: str) -> list[Figures]:
    """Run one worker, for which nothing was learned."""
    settings = ("--modes", ",".join(MODES), "--seconds", str(seconds))
    with tempfile.TemporaryDirectory() as cache:
        given = {"TF_AMP_CACHE": cache, "TF_AMP_TUNE": tune}
        environment = worker_environment() | given
        printed = worker_lines(
            "prediction_worker", name, *settings, environment=environment
        )
    lines = printed[-len(MODES) :]
    figures = [figures_from_json(line) for line in lines]
    return sorted(figures, key=lambda each: MODES.index(each.mode))


def figures_from_json(line: str) -> Figures:
    """Return what a worker printed for one mode."""
    fields = json.loads(line)
    for name in ("predicted", "measured"):
        fields[name] = tuple(fields[name])
    return Figures(**fields)


def markdown(figures: Sequence[Figures]) -> str:
    """Return the table, what its columns mean, and how many are right."""
    rounds: dict[tuple[str, str], list[Figures]] = {}
    for each in figures:
        rounds.setdefault((each.model, each.mode), []).append(each)
    table = markdown_table(_TITLES, [_cells(each) for each in rounds.values()])
    middles = [_middle(each) for each in rounds.values()]
    modes = dict.fromkeys(each.mode for each in middles)
    counts = [_count([f for f in middles if f.mode == mode], mode) for mode in modes]
    return "\n\n".join([table, _EXPLANATION, "\n".join(counts)])


def _middle(rounds: Sequence[Figures]) -> Figures:
    """Return the medians of what the rounds have of one model's mode."""

    def middles(name: str) -> tuple[float, float]:
        before, after = zip(*(getattr(each, name) for each in rounds), strict=True)
        return median(before), median(after)

    return replace(
        rounds[0], predicted=middles("predicted"), measured=middles("measured")
    )


def _cells(rounds: Sequence[Figures]) -> tuple[str, ...]:
    figures = _middle(rounds)
    predicted, measured = map(gain_percent, (figures.predicted, figures.measured))
    off = predicted - measured
    return (
        entry(figures.model).title,
        figures.mode,
        *(cell for which in (0, 1) for cell in _compared(rounds, which)),
        f"{predicted:.0f}" if any(each.low_slots for each in rounds) else "none",
        f"{measured:.0f}",
        _marked(f"{off:+.0f}", abs(off) <= NEAR_POINTS),
    )


def _compared(rounds: Sequence[Figures], which: int) -> tuple[str, str, str]:
    """Return milliseconds as predicted and measured, and their ratio.

    Args:
      rounds: figures of one model's mode.
      which: 0 for float32, 1 for the mixed step.
    """
    middle = _middle(rounds)
    predicted, measured = middle.predicted[which], middle.measured[which]
    ratios = [each.predicted[which] / each.measured[which] for each in rounds]
    text = _marked(f"{predicted / measured:.2f}", is_near(predicted, measured))
    if len(rounds) > 1:
        text += f" ({min(ratios):.2f}-{max(ratios):.2f})"
    return f"{1e3 * predicted:.3g}", f"{1e3 * measured:.3g}", text


def _marked(text: str, right: bool) -> str:
    return text if right else f"**{text}**"


def is_near(predicted: float, measured: float) -> bool:
    """Return whether a prediction is within a fifth of what was measured."""
    return abs(predicted / measured - 1.0) <= NEAR + 1e-9


def gain_percent(seconds: tuple[float, float]) -> float:
    """Return the share of the first time that the second saves, in percent."""
    before, after = seconds
    return 100.0 * (1.0 - after / before)


def _count(figures: Sequence[Figures], mode: str) -> str:
    times = sum(all(map(is_near, each.predicted, each.measured)) for each in figures)
    gains = sum(
        abs(gain_percent(each.predicted) - gain_percent(each.measured)) <= NEAR_POINTS
        for each in figures
    )
    return (
        f"- {mode}: both precisions within 20 % for {times} of {len(figures)} models, "
        f"the gain within 10 points for {gains}."
    )


if __name__ == "__main__":
    main()
