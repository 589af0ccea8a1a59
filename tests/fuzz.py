"""Fuzz the pass with random programs: python -m tests.fuzz [N] [--start SEED].

Seeds run in worker processes, so that a crash inside TensorFlow is reported with its
seed and costs no more than that. Exit code 0 when every seed is clean.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

SECONDS_PER_SEED = 300
# A worker is replaced after so many seeds: TensorFlow keeps every function it saw.
SEEDS_PER_WORKER = 200


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    if options.worker:
        return _work(range(options.start, options.start + options.count))
    if options.seed is not None:
        return _reproduce(options.seed)
    seeds = range(options.start, options.start + options.count)
    campaign = _Campaign(seeds)
    try:
        campaign.run(options.jobs)
    except KeyboardInterrupt:
        first = campaign.first_unchecked
        left = seeds.stop - first
        print(f"stopped; continue with: python -m tests.fuzz {left} --start {first}")
        return 130
    print(campaign.summary())
    return 1 if campaign.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "count", nargs="?", type=int, default=200, help="seeds to check"
    )
    parser.add_argument("-n", dest="count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="check this one, in this process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _work(seeds: range) -> int:
    """Check seeds one by one; print which one begins, then its outcome as JSON."""
    from tests.fuzz_check import check_seed

    for seed in seeds:
        print(json.dumps({"begin": seed}), flush=True)
        try:
            outcome = dataclasses.asdict(check_seed(seed))
        except Exception as error:
            text = f"not built: {type(error).__name__}: {' '.join(str(error).split())}"
            outcome = {"seed": seed, "failures": [text[:400]]}
        print(json.dumps(outcome), flush=True)
    return 0


def _reproduce(seed: int) -> int:
    """Check one seed at both dtypes and show everything."""
    from tests.fuzz_check import LOW_DTYPES, check_seed

    outcome = check_seed(seed, LOW_DTYPES)
    print(outcome)
    return 1 if outcome.failures else 0


class _Campaign:
    """Seeds shared out to worker processes, and what came back."""

    def __init__(self, seeds: range) -> None:
        self._seeds = seeds
        self._chunks = iter(
            seeds[i : i + SEEDS_PER_WORKER]
            for i in range(0, len(seeds), SEEDS_PER_WORKER)
        )
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._rewritten = self._chaotic = 0
        self._stopped = False
        self.failed: dict[int, str] = {}

    @property
    def first_unchecked(self) -> int:
        return next((s for s in self._seeds if s not in self._done), self._seeds.stop)

    def run(self, jobs: int) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress("{task.description}", *columns) as progress:
            task = progress.add_task("seeds", total=len(self._seeds))
            threads = [
                threading.Thread(target=self._serve, args=(progress, task), daemon=True)
                for _ in range(jobs)
            ]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            finally:
                self._stopped = True

    def _serve(self, progress: Progress, task: int) -> None:
        """Work chunks off; after a crash go on behind the seed that caused it."""
        while (chunk := self._next_chunk()) is not None:
            while chunk and not self._stopped:
                for outcome in _outcomes_of_worker(chunk):
                    self._take(outcome, progress)
                    progress.advance(task)
                    chunk = range(outcome["seed"] + 1, chunk.stop)

    def _next_chunk(self) -> range | None:
        with self._lock:
            return None if self._stopped else next(self._chunks, None)

    def _take(self, outcome: dict, progress: Progress) -> None:
        with self._lock:
            seed = outcome["seed"]
            self._done.add(seed)
            self._rewritten += outcome.get("rewritten", 0)
            self._chaotic += outcome.get("chaotic", False)
            if len(self._done) % 500 == 0 and not progress.console.is_terminal:
                print(f"{len(self._done)} of {len(self._seeds)} seeds", flush=True)
            for failure in outcome["failures"]:
                self.failed.setdefault(seed, failure)
                progress.console.print(
                    f"seed {seed}: {failure}\n"
                    f"  reproduce: python -m tests.fuzz --seed {seed}",
                    soft_wrap=True,
                    markup=False,
                    highlight=False,
                )

    def summary(self) -> str:
        return (
            f"{len(self._done)} programs, {self._rewritten} rewritings run, "
            f"{self._chaotic} programs too ill-conditioned to compare results, "
            f"{len(self.failed)} failed"
        )


def _outcomes_of_worker(seeds: range) -> Iterator[dict]:
    """Yield outcomes in order; the last one tells of a crash or a hang, if any."""
    command = [sys.executable, "-m", "tests.fuzz", str(len(seeds)), "--worker"]
    worker = subprocess.Popen(
        [*command, "--start", str(seeds.start)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    )
    current = seeds.start
    watch = _Watch(worker)
    try:
        for line in worker.stdout:
            watch.restart()
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


class _Watch:
    """Kills a worker that prints nothing for too long."""

    def __init__(self, worker: subprocess.Popen) -> None:
        self._worker = worker
        self.fired = False
        self._timer = threading.Timer(SECONDS_PER_SEED, self._fire)
        self._timer.start()

    def _fire(self) -> None:
        self.fired = True
        self._worker.kill()

    def restart(self) -> None:
        self.stop()
        self._timer = threading.Timer(SECONDS_PER_SEED, self._fire)
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()


if __name__ == "__main__":
    sys.exit(main())
