"""What tuning costs at the first step: python -m benchmarks.first_step.

Fresh processes take turns: float32, tf-amp without tuning, with tuning and an empty
database, and once more with the database that this left behind.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from rich.progress import Progress

from benchmarks.catalog import DEMO_MODELS, MODELS, MODES, entry, variant
from benchmarks.context import context_of
from benchmarks.driver import Turn, run_turn
from benchmarks.records import Run
from benchmarks.report import markdown_table
from benchmarks.results import keep_table, write_results

# What is run in a round, in this order: the title of its column, and the variant.
_KINDS = (
    ("float32", "float32"),
    ("tuning off", "untuned"),
    ("empty database", "ours"),
    ("warm database", "ours"),
)
_TITLES = (
    "model",
    "mode",
    *(f"{kind} s" for kind, _ in _KINDS),
    "delay, empty s",
    "share, empty",
    "delay, warm s",
    "share, warm",
    "steps until repaid",
)
_EXPLANATION = (
    "Seconds of the first step, tracing and optimizing included: median of the rounds. "
    "*delay*: beyond tuning off. *share*: the delay over float32's own first step, of "
    "which 100 % doubles the time until the second; a job pays it once per graph, "
    "however long it runs. The demo's models are those of `make demo`, with its "
    "batches. *steps until repaid*: steps after which what an empty "
    "database costs beyond float32 is won back; -: no step is faster."
)

# Seconds of the first and of a later step, by kind, model and mode: one per round.
Figures = dict[tuple[str, str, str], list[tuple[float, float]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the section of RESULTS.md on the first step."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_step")
    names = [model.name for model in (*DEMO_MODELS, *MODELS)]
    parser.add_argument("--models", type=lambda text: text.split(","), default=names)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(given)
    figures: Figures = {}
    with Progress() as progress:
        total = len(options.models) * options.rounds * len(_KINDS) * len(MODES)
        task = progress.add_task("first step", total=total)

        def announce(what: str) -> None:
            progress.update(task, advance=1, description=what)

        for model in options.models:
            for number in range(options.rounds):
                for mode in MODES:
                    _run_round(model, mode, number, figures, announce)
    table = markdown(figures)
    print(table)
    if options.models == names:
        command = " ".join(("python -m benchmarks.first_step", *given))
        keep_table("first_step", table, context_of(command, rounds=options.rounds))
        write_results()


def _run_round(
    model: str,
    mode: str,
    number: int,
    figures: Figures,
    announce: Callable[[str], None],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind, name in _KINDS:
            announce(f"{model}, {mode}, {kind}")
            turn = Turn(model, variant(name), number, (mode,), 1.0, Path(folder))
            run = run_turn(turn)
            figures.setdefault((kind, model, mode), []).append(_seconds(run))


def _seconds(run: Run) -> tuple[float, float]:
    if run.failure:
        raise RuntimeError(f"{run.model}, {run.variant}: {run.failure}")
    measured = run.measurements[0]
    return measured.first_seconds, measured.seconds


def markdown(figures: Figures) -> str:
    """Return the table with what its columns mean."""
    keys = dict.fromkeys(key[1:] for key in figures)
    cells = [_cells(figures, model, mode) for model, mode in keys]
    return f"{markdown_table(_TITLES, cells)}\n\n{_EXPLANATION}"


def _cells(figures: Figures, model: str, mode: str) -> tuple[str, ...]:
    rounds = {kind: figures[kind, model, mode] for kind, _ in _KINDS}
    first = {kind: median(each[0] for each in rounds[kind]) for kind in rounds}
    later = {kind: median(each[1] for each in rounds[kind]) for kind in rounds}
    delay = {kind: first[kind] - first["tuning off"] for kind in first}
    gain = later["float32"] - later["empty database"]
    lost = first["empty database"] - first["float32"]
    costs = (
        (f"{delay[kind]:.2f}", f"{delay[kind] / first['float32']:.0%}")
        for kind in ("empty database", "warm database")
    )
    return (
        entry(model).title,
        mode,
        *(f"{seconds:.2f}" for seconds in first.values()),
        *itertools.chain.from_iterable(costs),
        f"{max(lost, 0) / gain:.0f}" if gain > 0.02 * later["float32"] else "-",
    )


if __name__ == "__main__":
    main()
