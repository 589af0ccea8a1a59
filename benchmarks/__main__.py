"""Compare whole models: ``python -m benchmarks``."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from benchmarks.catalog import (
    DEFAULT_VARIANTS,
    MOBILENET_BATCHES,
    MODELS,
    MODES,
    VARIANTS,
)
from benchmarks.context import context_of
from benchmarks.driver import Schedule, run_turn
from benchmarks.machine import this_machine
from benchmarks.records import Run
from benchmarks.report import remarks, terminal_table
from benchmarks.results import (
    RAW,
    RESULTS,
    command_kept,
    keep_runs,
    with_others,
    write_results,
)
from benchmarks.summary import rows_from_runs

_MODELS = tuple(each.name for each in MODELS)
_ALL_MODELS = (*_MODELS, *(each.name for each in MOBILENET_BATCHES))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the schedule of the command line; return 1 if a process failed."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    schedule = Schedule(
        models=options.models,
        modes=options.modes,
        variants=options.variants,
        rounds=options.rounds,
        seconds=options.seconds,
    )
    console = Console()
    runs = _run_with_progress(schedule, console)
    rows = rows_from_runs(runs)
    console.print(terminal_table(rows))
    for remark in remarks(rows, has_low_units=this_machine().has_low_units):
        console.print(remark, markup=False)
    default = RESULTS if options.add else _default_output(schedule)
    if path := options.output or default:
        which = ",".join(schedule.models) if options.add else None
        words = ("MODEL" if word == which else word for word in given)
        command = " ".join(("python -m benchmarks", *words))
        raw = RAW if path == RESULTS else path.parent / "raw"
        if options.add:
            runs = with_others(runs, raw)
            if schedule.modes != MODES:
                command = f"{command_kept(raw)}`, then `{command}"
        keep_runs(runs, context_of(command, rounds=schedule.rounds), raw)
        write_results(path, raw)
        console.print(f"Written to {path}.")
    return int(any(run.failure for run in runs))


def _run_with_progress(schedule: Schedule, console: Console) -> tuple[Run, ...]:
    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting", total=len(schedule))

        runs = []
        with tempfile.TemporaryDirectory() as folder:
            for turn in schedule.turns(Path(folder)):
                progress.update(task, description=str(turn))
                run = run_turn(turn)
                if turn.is_counted:
                    runs.append(run)
                progress.advance(task)
    return tuple(runs)


def _default_output(schedule: Schedule) -> Path | None:
    """Return RESULTS.md if everything is measured; else only the terminal is told."""
    complete = (
        schedule.models == _MODELS
        and schedule.modes == MODES
        and set(DEFAULT_VARIANTS) <= set(schedule.variants)
    )
    return RESULTS if complete else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    names = tuple(each.name for each in VARIANTS)
    add("--models", type=_subset(_ALL_MODELS), default=_MODELS)
    add("--modes", type=_subset(MODES), default=MODES)
    add("--variants", type=_subset(names), default=DEFAULT_VARIANTS)
    add("--add", action="store_true", help="to what RESULTS.md has of other models")
    add("--rounds", type=int, default=5, help="processes per variant and model")
    add("--seconds", type=float, default=2.0, help="timed part of a mode in a process")
    add("--output", type=Path, help="Markdown file; the raw figures go to raw/ there")
    return parser


def _subset(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated lists of known names."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"unknown name {name!r}; known: {', '.join(known)}"
                )
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
