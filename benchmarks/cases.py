"""Programs that measure each of their cases in a process of its own."""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from rich.progress import track

from benchmarks.processes import worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish

# Rows of the table, and what was measured for them.
Found = tuple[Sequence[tuple[str, ...]], Any]


def measure_cases(
    name: str,
    cases: Sequence[str],
    measure: Callable[[str], Found],
    titles: Sequence[str],
    explanation: str,
    *,
    rounds: int = 1,
) -> None:
    """Measure, print, and write the section of RESULTS.md, as the command line says.

    Args:
        name: of the program.
        cases: all there are, by name.
        measure: returns what one of them comes to; called in its process.
        titles: of the table's columns.
        explanation: of them.
        rounds: how often a process measures.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--cases", type=lambda text: text.split(","), default=cases)
    parser.add_argument("--worker", metavar="CASE", help="one process")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker)))
        return
    found = {
        case: json.loads(worker_lines(name, "--worker", case)[-1])
        for case in track(options.cases, "measuring")
    }
    table = markdown_table(titles, [row for rows, _ in found.values() for row in rows])
    publish(
        name,
        f"{table}\n\n{explanation}",
        {case: samples for case, (_, samples) in found.items()},
        rounds=rounds,
        is_whole=[*options.cases] == [*cases],
    )
