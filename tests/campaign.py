"""Check many seeds in worker processes, whatever it is that a seed stands for.

A crash inside TensorFlow is reported with its seed and costs no more than that.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import importlib.metadata
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

# A worker is replaced after so many seeds: TensorFlow keeps every function it saw.
MOST_SEEDS_PER_WORKER = 200
# What is traced stays: collecting garbage more often takes a tenth of the time.
_GARBAGE = 200_000
# What the campaigns of `make test-long` came to, a row each.
FILE = pathlib.Path(__file__).with_name("long_runs.md")
NOTE = "--note"


@dataclasses.dataclass(frozen=True)
class Command:
    """A module that checks seeds: python -m MODULE [N] [--start SEED].

    Attributes:
      module: its name.
      description: for people.
      check: returns what became of a seed: its "failures", one text each, and counts
        by name, which are summed up.
      reproduce: checks one seed, shows everything, and returns whether all is well.
      summary: says in a line what the sums of the counts mean.
      seconds_per_seed: after which a worker is taken to hang.
      try_recipe: does as `reproduce` with the text of a recipe, where seeds stand for
        recipes; `check` then also tells the smallest recipe that fails.
      own_options: parsers of what its command line takes besides.
      passed: words of the command line that workers get, too.
      count: how many seeds are checked where none is said.
    """

    module: str
    description: str
    check: Callable[[int], Mapping[str, Any]]
    reproduce: Callable[[int], bool]
    summary: Callable[[Counter[str]], str]
    seconds_per_seed: int = 300
    try_recipe: Callable[[str], bool] | None = None
    own_options: tuple[argparse.ArgumentParser, ...] = ()
    passed: tuple[str, ...] = ()
    count: int = 200

    def run(self, arguments: list[str] | None = None) -> int:
        """Run the command line; 0 when every seed is clean."""
        options = self._parser().parse_args(arguments)
        seeds = range(options.start, options.start + options.count)
        if options.worker:
            return self._work(seeds)
        if self.try_recipe and options.recipe is not None:
            return 0 if self.try_recipe(options.recipe) else 1
        if options.seed is not None:
            return 0 if self._reproduced(options.seed) else 1
        campaign = _Campaign(self, seeds, options.jobs)
        try:
            campaign.run()
        except KeyboardInterrupt:
            first = campaign.first_unchecked
            left = seeds.stop - first
            print(
                f"stopped; continue with: python -m {self.module} {left} "
                f"--start {first} {' '.join(self.passed)}".rstrip()
            )
            return 130
        print(campaign.summary())
        if options.note:
            note(self.module, seeds, campaign.summary())
        return 1 if campaign.failed else 0

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}",
            description=self.description,
            parents=self.own_options,
        )
        parser.add_argument(
            "count",
            nargs="?",
            type=_positive,
            default=self.count,
            help="seeds to check",
        )
        parser.add_argument("-n", dest="count", type=_positive, help=argparse.SUPPRESS)
        parser.add_argument("--start", type=int, default=0, help="first seed")
        parser.add_argument("--seed", type=int, help="check this one, in this process")
        if self.try_recipe:
            parser.add_argument("--recipe", help="try this one, in this process")
        parser.add_argument(
            "--jobs", type=_positive, default=os.cpu_count(), help="processes"
        )
        parser.add_argument(
            NOTE, action="store_true", help="write down what comes of it"
        )
        parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
        return parser

    def _reproduced(self, seed: int) -> bool:
        """Show a seed, then the smallest recipe that fails as it does."""
        if self.reproduce(seed):
            return True
        if self.try_recipe:
            print(*self.check(seed)["failures"], sep="\n")
        return False

    def _work(self, seeds: range) -> int:
        """Check seeds one by one; print which begins, then its outcome as JSON."""
        gc.set_threshold(_GARBAGE)
        for seed in seeds:
            print(json.dumps({"begin": seed}), flush=True)
            try:
                outcome = self.check(seed)
            except Exception as error:
                text = (
                    f"not built: {type(error).__name__}: {' '.join(str(error).split())}"
                )
                outcome = {"failures": [text[:400]]}
            print(json.dumps({**outcome, "seed": seed}), flush=True)
        return 0

    def outcomes_of_worker(self, seeds: range) -> Iterator[dict[str, Any]]:
        """Yield outcomes in order; the last one tells of a crash or a hang, if any."""
        command = [sys.executable, "-m", self.module, str(len(seeds)), "--worker"]
        worker = subprocess.Popen(
            [*command, "--start", str(seeds.start), *self.passed],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "CUDA_VISIBLE_DEVICES": "-1",
            },
        )
        current = seeds.start
        watch = _Watch(worker, self.seconds_per_seed)
        try:
            for line in worker.stdout:
                watch.restart()
                if not line.startswith("{"):
                    # Not ours: some library's.
                    continue
                message = json.loads(line)
                if "begin" in message:
                    current = message["begin"]
                    continue
                yield message
                current = message["seed"] + 1
            if current < seeds.stop:
                code = worker.wait()
                what = "hangs" if watch.fired else f"killed the process (code {code})"
                yield {"seed": current, "failures": [what]}
        finally:
            watch.stop()
            worker.kill()
            worker.wait()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


class _Campaign:
    """Seeds shared out to worker processes, and what came back."""

    def __init__(self, command: Command, seeds: range, jobs: int) -> None:
        self._command = command
        self._seeds = seeds
        self._jobs = jobs
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._totals: Counter[str] = Counter()
        self._stopped = False
        self.failed: dict[int, str] = {}

    @property
    def first_unchecked(self) -> int:
        return next((s for s in self._seeds if s not in self._done), self._seeds.stop)

    def run(self) -> None:
        size = min(MOST_SEEDS_PER_WORKER, math.ceil(len(self._seeds) / self._jobs))
        starts = range(0, len(self._seeds), size)
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with (
            Progress("{task.description}", *columns) as progress,
            ThreadPoolExecutor(self._jobs) as pool,
        ):
            task = progress.add_task("seeds", total=len(self._seeds))

            def serve(start: int) -> None:
                """Work a chunk off; after a crash go on behind the seed that did it."""
                chunk = self._seeds[start : start + size]
                while chunk and not self._stopped:
                    for outcome in self._command.outcomes_of_worker(chunk):
                        if self._stopped:
                            return
                        self._take(outcome, progress)
                        progress.advance(task)
                        chunk = range(outcome["seed"] + 1, chunk.stop)

            try:
                list(pool.map(serve, starts))
            finally:
                self._stopped = True

    def _take(self, outcome: dict[str, Any], progress: Progress) -> None:
        with self._lock:
            seed, failures = outcome["seed"], outcome["failures"]
            counts = outcome.keys() - {"seed", "failures"}
            self._done.add(seed)
            self._totals.update({name: outcome[name] for name in counts})
            if len(self._done) % 500 == 0 and not progress.console.is_terminal:
                print(f"{len(self._done)} of {len(self._seeds)} seeds", flush=True)
            words = " ".join(["--seed", str(seed), *self._command.passed])
            for failure in failures:
                self.failed.setdefault(seed, failure)
                progress.console.print(
                    f"seed {seed}: {failure}\n"
                    f"  reproduce: python -m {self._command.module} {words}",
                    soft_wrap=True,
                    markup=False,
                    highlight=False,
                )

    def summary(self) -> str:
        failed = f"{len(self.failed)} failed"
        if self.failed:
            failed += f": {', '.join(map(str, sorted(self.failed)))}"
        return (
            f"{len(self._done)} programs, {self._command.summary(self._totals)}, "
            f"{failed}"
        )


class _Watch:
    """Kills a worker that prints nothing for too long."""

    def __init__(self, worker: subprocess.Popen, seconds: float) -> None:
        self._worker = worker
        self._seconds = seconds
        self.fired = False
        self._start()

    def _start(self) -> None:
        self._timer = threading.Timer(self._seconds, self._fire)
        self._timer.start()

    def _fire(self) -> None:
        self.fired = True
        self._worker.kill()

    def restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        self._timer.cancel()


def note(module: str, seeds: range, result: str, path: pathlib.Path = FILE) -> None:
    """Write the row of the command that is running, in the place of its last one."""
    command = command_of(module, sys.argv[1:])
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cells = (
        command,
        f"{seeds.start}-{seeds.stop - 1}",
        f"{datetime.date.today()}",
        importlib.metadata.version("tensorflow-cpu"),
        f"{spent.ru_utime + spent.ru_stime:.0f}",
        result,
    )
    path.write_text(with_row(path.read_text(), cells))


def command_of(module: str, arguments: list[str]) -> str:
    """Return a command line as its row begins."""
    kept = [argument for argument in arguments if argument != NOTE]
    return f"`{' '.join(['python -m', module, *kept])}`"


def with_row(text: str, cells: tuple[str, ...]) -> str:
    """Return a table with a row in the place of the one that begins alike."""
    row = f"| {' | '.join(cells)} |"
    lines = text.splitlines()
    same = [i for i, line in enumerate(lines) if line.startswith(f"| {cells[0]} |")]
    for number in same:
        lines[number] = row
    return "\n".join(lines if same else [*lines, row]) + "\n"
