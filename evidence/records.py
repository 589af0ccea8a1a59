"""Keep what training runs came to, a file each: what is done is not repeated."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Collection
from typing import Any

from benchmarks.context import context_of
from evidence.family import Family
from evidence.methods import Method, environment_of
from evidence.trial import Trial

HERE = pathlib.Path(__file__).resolve().parent
RAW = HERE / "raw"
ROOT = HERE.parent


@dataclasses.dataclass(frozen=True)
class Wanted:
    """One run: the first so many steps of a family's training."""

    family: Family
    method: Method
    seed: int
    steps: int

    def __str__(self) -> str:
        """Return what the progress bar shows."""
        return f"{self.family.title}, {self.method.title}, seed {self.seed}"

    def path(self, folder: pathlib.Path) -> pathlib.Path:
        """Return where it is kept."""
        return folder / self.family.name / f"{self.method.name}-{self.seed}.json"


def trial_of(wanted: Wanted, folder: pathlib.Path = RAW) -> Trial | None:
    """Return what is kept of a run; None if it is not, or took other steps."""
    path = wanted.path(folder)
    if not path.exists():
        return None
    kept = json.loads(path.read_text())["trial"]
    trial = Trial(
        **{
            **kept,
            "losses": tuple(kept["losses"]),
            "metrics": tuple(map(tuple, kept["metrics"])),
        }
    )
    return trial if trial.steps == wanted.steps else None


def origin_of(wanted: Wanted, folder: pathlib.Path = RAW) -> str:
    """Return which CPU and revision a run that is kept comes from."""
    kept = json.loads(wanted.path(folder).read_text())
    context = kept["context"]
    machine = context["machine"]
    return f"{machine['processor']} ({machine['kind']}), revision {context['revision']}"


def run_and_keep(
    wanted: Wanted, folder: pathlib.Path = RAW, cores: Collection[int] | None = None
) -> None:
    """Train in a fresh process, and keep what it came to.

    Args:
      wanted: which run.
      folder: where it is kept.
      cores: numbers of those that it may use; None for all that this process may.

    Raises:
      RuntimeError: the process failed; the message has the end of its errors.
    """
    words = (wanted.family.name, wanted.method.name, wanted.seed, wanted.steps)
    cores = cores or os.sched_getaffinity(0)
    listed = ",".join(map(str, cores))
    command = ["taskset", "-c", listed, sys.executable, "-m", "evidence.trial"]
    done = subprocess.run(
        [*command, *map(str, words)],
        cwd=ROOT,
        env=environment_of(wanted.method),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{wanted} failed: {done.stderr.strip()[-2000:]}")
    context = context_of(f"python -m evidence {wanted.family.name}", rounds=1)
    machine = dataclasses.replace(context.machine, cores=len(cores))
    kept: dict[str, Any] = {
        "trial": json.loads(done.stdout.splitlines()[-1]),
        "context": dataclasses.asdict(dataclasses.replace(context, machine=machine)),
    }
    path = wanted.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(kept))
    unfinished.replace(path)
