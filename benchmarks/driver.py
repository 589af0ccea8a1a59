"""Run the workers: fresh processes, the variants taking turns within each round."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.catalog import Variant, variant
from benchmarks.records import Run, run_from_json

ROOT = Path(__file__).resolve().parent.parent

_LEFT_OUT = (
    # TensorFlow is installed with its bytecode.
    "PYTHONDONTWRITEBYTECODE",
    "TF_AMP_",
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE",
)
_ALWAYS = {
    "KERAS_BACKEND": "tensorflow",
    "TF_AMP_VERBOSE": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
_LONGEST_PROCESS_SECONDS = 900
_LEFT_FLOAT32 = "stays float32: "


@dataclass(frozen=True)
class Turn:
    """One process to run.

    ``seconds`` is the timed part of each mode; ``cache`` the folder of what tf-amp
    measures, the user's own if it is None. What is not counted prepares the next turn.
    """

    model: str
    variant: Variant
    round: int
    modes: tuple[str, ...]
    seconds: float
    cache: Path | None = None
    is_counted: bool = True

    def __str__(self) -> str:
        """Return what the progress bar shows."""
        return f"{self.model}, {self.variant.title}, round {self.round + 1}"

    def command(self) -> list[str]:
        """Return the command line of the worker."""
        return [
            *(sys.executable, "-m", "benchmarks.worker", self.model, self.variant.name),
            *("--round", str(self.round), "--modes", ",".join(self.modes)),
            *("--seconds", str(self.seconds)),
        ]


@dataclass(frozen=True)
class Schedule:
    """What to run: every model, all variants taking turns within each round.

    Each variant begins a round with an empty database, since a verdict must not depend
    on luck; where tf-amp learns, one process does, and the next one is counted.
    """

    models: tuple[str, ...]
    modes: tuple[str, ...]
    variants: tuple[str, ...]
    rounds: int
    seconds: float

    def __len__(self) -> int:
        """Return how many processes will be started."""
        processes = sum(1 + variant(name).learns for name in self.variants)
        return len(self.models) * self.rounds * processes

    def turns(self, folder: Path) -> Iterator[Turn]:
        """Yield the processes; each round starts one variant later than the last.

        Args:
            folder: for databases.
        """
        for model in self.models:
            for number in range(self.rounds):
                first = number % len(self.variants)
                for name in self.variants[first:] + self.variants[:first]:
                    turn = Turn(
                        *(model, variant(name), number, self.modes, self.seconds),
                        cache=folder / f"{model}_{number}_{name}",
                    )
                    if turn.variant.learns:
                        yield dataclasses.replace(turn, is_counted=False)
                    yield turn


def run_turn(turn: Turn) -> Run:
    """Run one worker and return what it reports, or the reason of its failure."""
    try:
        done = subprocess.run(
            turn.command(),
            cwd=ROOT,
            env=worker_environment(turn.variant, turn.cache),
            capture_output=True,
            text=True,
            timeout=_LONGEST_PROCESS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return _failed(turn, "no result in time")
    if done.returncode:
        return _failed(turn, _reason(done))
    run = run_from_json(done.stdout.splitlines()[-1])
    return dataclasses.replace(run, warning=_warning(done.stderr))


def _warning(text: str) -> str:
    """Return the first warning of tf-amp that a graph could not be rewritten."""
    found = (line for line in text.splitlines() if _LEFT_FLOAT32 in line)
    return next(found, "")[:200]


def _failed(turn: Turn, reason: str) -> Run:
    return Run(turn.model, turn.variant.name, turn.round, failure=reason)


def worker_environment(chosen: Variant, cache: Path | None = None) -> dict[str, str]:
    """Return the caller's environment without its own switches, plus the variant's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LEFT_OUT)
    }
    own_cache = {} if cache is None else {"TF_AMP_CACHE": str(cache)}
    return kept | _ALWAYS | own_cache | dict(chosen.environment)


def worker_lines(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the lines that a worker of another benchmark prints.

    Args:
        module: under ``benchmarks``.
        arguments: for it.
        environment: as of ``worker_environment``; None for plain float32.

    Raises:
        RuntimeError: it failed; the message has the end of its errors.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT,
        env=environment or worker_environment(variant("float32")),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = done.stderr.strip()[-2000:]
        raise RuntimeError(f"{module} failed ({done.returncode}): {reason}")
    return done.stdout.splitlines()


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of the error, and the signal if one ended the process."""
    lines = done.stderr.strip().splitlines() or [""]
    return f"exit status {done.returncode}: {lines[-1][:200]}"
