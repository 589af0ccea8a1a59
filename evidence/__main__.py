"""Run what is missing of the experiments: ``python -m evidence --all``."""

from __future__ import annotations

import argparse
import os
import pathlib
import queue
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from rich.progress import Progress

from evidence.families import NAMES, family_of
from evidence.methods import METHODS, method_of
from evidence.page import cells, write
from evidence.records import RAW, Wanted, run_and_keep, trial_of
from evidence.summary import SEEDS, corrected, rows_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the rows, and write docs/evidence.md unless trainings are short."""
    options = _parser().parse_args(arguments)
    names = NAMES if options.all else options.families
    families = [family_of(name) for name in names]
    wanted = [
        Wanted(family, method, seed, options.steps or family.steps)
        for family in families
        for seed in range(options.seeds)
        for method in map(method_of, options.methods)
    ]
    missing = [each for each in wanted if trial_of(each, options.output) is None]
    _run_all(missing, options.output, options.jobs)
    for family in families:
        seeds = range(options.seeds)
        rows = rows_of(family, seeds, options.output, options.steps)
        for row in rows:
            print(" | ".join(cells(row, corrected(rows))))
    if options.output == RAW and options.steps is None:
        write()


def _run_all(missing: Sequence[Wanted], output: pathlib.Path, jobs: int) -> None:
    """Run so many at once, each on cores of its own."""
    every = sorted(os.sched_getaffinity(0))
    idle: queue.Queue[list[int]] = queue.Queue()
    for job in range(min(jobs, len(every))):
        idle.put(every[job::jobs])
    with Progress(transient=True) as progress:
        task = progress.add_task("", total=len(missing))

        def run(each: Wanted) -> None:
            cores = idle.get()
            progress.update(task, description=str(each))
            try:
                run_and_keep(each, output, cores)
            finally:
                idle.put(cores)
            progress.advance(task)

        with ThreadPoolExecutor(idle.qsize()) as pool:
            futures = [pool.submit(run, each) for each in missing]
            try:
                for future in as_completed(futures):
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evidence", description=__doc__)
    add = parser.add_argument
    known = tuple(method.name for method in METHODS)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true", help="all families")
    which.add_argument("families", nargs="*", choices=(*NAMES, []), default=[])
    add("--methods", nargs="+", choices=known, default=known)
    add("--seeds", type=int, default=len(SEEDS), help="how many, from 0 on")
    add("--steps", type=int, help="of a whole training; the page is not written then")
    add(
        "--jobs", type=int, choices=range(1, 65), metavar="N", default=1, help="at once"
    )
    add("--output", type=pathlib.Path, default=RAW, help="folder for runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
