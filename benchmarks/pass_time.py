"""Time and memory of the pass by size of the graph, and time of the import.

Everything is compared with the same without tf-amp, in fresh processes that take
turns. The graph is the training step of ResNet-50 under Adam, about 10,000 nodes, and
copies of it side by side.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.announcing import Announce, announcing
from benchmarks.pass_report import GraphSize, PassFigures
from benchmarks.processes import worker_environment, worker_lines
from benchmarks.results import publish
from tf_amp.config.amp_config import SWITCH
from tf_amp.runtime import autostart

_COPIES = (1, 3, 10)
_IMPORT = (sys.executable, "-c", "import tensorflow")


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on the pass."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pass_time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=_numbers, default=_COPIES)
    options = parser.parse_args()
    pairs = options.rounds + sum(
        max(1, options.rounds // each) for each in options.copies
    )
    with announcing(1 + 2 * pairs) as announce:
        figures = PassFigures(
            sizes=measure_sizes(options.copies, options.rounds, announce),
            import_seconds=measure_import(options.rounds, announce),
        )
    publish(
        "pass_time",
        figures.markdown(),
        dataclasses.asdict(figures),
        rounds=options.rounds,
    )


def measure_sizes(
    copies: Sequence[int], rounds: int, announce: Announce
) -> tuple[GraphSize, ...]:
    """Return the figures for each number of copies of the graph."""
    with tempfile.TemporaryDirectory() as folder:
        stem = str(Path(folder) / "graph")
        announce("capturing the graph")
        _run_worker("capture", stem)
        return tuple(_measure_size(stem, each, rounds, announce) for each in copies)


def _measure_size(stem: str, copies: int, rounds: int, announce: Announce) -> GraphSize:
    arguments = ("optimize", stem, "--copies", str(copies))
    without, with_pass = [], []
    # Large graphs take long and spread little.
    for _ in range(max(1, rounds // copies)):
        announce(f"{copies} copies without")
        without.append(json.loads(_run_worker(*arguments)))
        announce(f"{copies} copies with")
        with_pass.append(json.loads(_run_worker(*arguments, "--with-pass")))
    return GraphSize(
        nodes=with_pass[0]["nodes"],
        graph_bytes=with_pass[0]["graph_bytes"],
        low_nodes=with_pass[0]["low_nodes"],
        tensorflow_seconds=median(each["seconds"] for each in without),
        pass_seconds=median(each["pass_seconds"] for each in with_pass),
        pass_cpu_seconds=median(each["pass_cpu_seconds"] for each in with_pass),
        peak_bytes_without=median(each["peak_bytes"] for each in without),
        peak_bytes_with=median(each["peak_bytes"] for each in with_pass),
        stages=tuple(with_pass[0]["stages"].items()),
    )


def measure_import(
    rounds: int, announce: Announce
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return seconds of ``import tensorflow`` without and with the switch.

    Both are empty where tf-amp is not installed, so that nothing starts by itself.
    """
    if not autostart.is_installed():
        return (), ()
    without: list[float] = []
    with_switch: list[float] = []
    for _ in range(rounds):
        for times, variables in ((without, {}), (with_switch, {SWITCH: "1"})):
            announce(f"import tensorflow with {variables}")
            environment = worker_environment() | variables
            start = time.perf_counter()
            subprocess.run(_IMPORT, env=environment, check=True)
            times.append(time.perf_counter() - start)
    return tuple(without), tuple(with_switch)


def _run_worker(*arguments: str) -> str:
    """Return the last line that the worker prints."""
    return (worker_lines("pass_worker", *arguments) or [""])[-1]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    main()
