"""What a reader needs to repeat the figures: versions, processor, revision, date."""

from __future__ import annotations

import dataclasses
import datetime
import os
import pathlib
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata

import tf_amp
from tf_amp.config import devices
from tf_amp.tools.bench.job import FUNCTION, Target

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras", "numpy")
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


@dataclasses.dataclass(frozen=True)
class Context:
    """Where and when something was measured.

    Attributes:
      versions: of Python, tf-amp and what they stand on, by name.
      processor: model, how many cores this process may use, and what tells its speed.
      revision: of the git repository that the target is in, with "+" where files
        differ from it; "" where there is none.
      date: when it was begun, in UTC.
    """

    versions: tuple[tuple[str, str], ...]
    processor: str
    revision: str
    date: str


def context_of(target: Target) -> Context:
    """Return the context of a measurement that begins here and now."""
    now = datetime.datetime.now(datetime.timezone.utc)
    present, cores = devices.cpu_flags(), len(os.sched_getaffinity(0))
    flags = " ".join(flag for flag in _FLAGS if flag in present)
    path = pathlib.Path(target.name if target.kind != FUNCTION else "").resolve()
    return Context(
        (("Python", platform.python_version()), *versions_of(_PACKAGES)),
        f"{devices.cpu_model()}, {cores} cores ({flags})",
        revision_of(path if path.is_dir() else path.parent),
        f"{now:%Y-%m-%d %H:%M} UTC",
    )


def versions_of(packages: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the version of tf-amp, and of those packages that are installed."""
    found = [("tf-amp", tf_amp.__version__)]
    for name in packages:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def revision_of(folder: pathlib.Path, but: Sequence[str] = ()) -> str:
    """Return the git revision that a folder is at; "" where there is none.

    Paths in the folder whose patterns are given may differ; where others do, there is a
    "+" behind the revision.
    """
    revision = _git(folder, "rev-parse", "--short=12", "HEAD")
    others = (":/", *(f":(exclude){each}" for each in but))
    is_changed = revision and _git(folder, "status", "--porcelain", "--", *others)
    return f"{revision}+" if is_changed else revision


def _git(folder: pathlib.Path, *arguments: str) -> str:
    """Return what git says of a folder; "" where there is no git, or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
