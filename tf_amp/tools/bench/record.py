"""All that a measurement keeps, as the JSON file from which it is gone on with.

Beside the figures is what a reader needs to repeat them: versions, processor, revision,
date.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import tf_amp
from tf_amp.config import devices
from tf_amp.errors import ConfigError
from tf_amp.tools.bench.job import FUNCTION, Job, Target
from tf_amp.tools.bench.samples import Sample, sample_from_dict
from tf_amp.tools.bench.summary import Row, summarized
from tf_amp.tools.whole_files import write_whole

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras", "numpy")
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Context:
    """Where and when something was measured.

    Attributes:
      versions: of Python, tf-amp and what they stand on, by name.
      processor: model, how many cores this process may use, and what decides its speed.
      revision: of the git repository that the target is in, with "+" where files
        differ from it; "" where there is none.
      date: when it was begun, in UTC.
    """

    versions: tuple[tuple[str, str], ...]
    processor: str
    revision: str
    date: str


@dataclasses.dataclass(frozen=True)
class Record:
    """What was measured, where, and of what."""

    job: Job
    context: Context
    samples: tuple[Sample, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """What the samples come to."""
        return summarized(self.job, self.samples)

    def with_sample(self, sample: Sample) -> Record:
        """Return the record with one sample more."""
        return dataclasses.replace(self, samples=(*self.samples, sample))

    def write(self, path: pathlib.Path) -> None:
        """Write it, with the summary that readers need not make again.

        Raises:
          ConfigError: the file cannot be written; what was there before stays.
        """
        rows = [dataclasses.asdict(row) for row in self.rows]
        whole = {"version": _VERSION, **dataclasses.asdict(self), "summary": rows}
        write_whole(path, json.dumps(_standard(whole)).encode())


def continued(fresh: Record, path: pathlib.Path) -> Record:
    """Return what a file holds of the same job; what is not measured is run again.

    `fresh` is a record of the job, with nothing measured; the file need not exist.

    Raises:
      ConfigError: it holds something else; the message says what differs.
    """
    if not path.exists():
        return fresh
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--json: {path} cannot be read: {error}.") from error
    if not isinstance(kept, dict) or kept.get("version") != _VERSION:
        raise ConfigError(f"--json: {path} was not written by `tf-amp bench`.")
    try:
        return _continued(fresh, kept, path)
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"--json: {path} does not hold what `tf-amp bench` writes: {error!r}."
        ) from error


def _continued(fresh: Record, kept: Mapping[str, Any], path: pathlib.Path) -> Record:
    """Return a record with what was kept of its job.

    Raises:
      ConfigError: that is of another job.
      LookupError, TypeError, ValueError, AttributeError: it makes no sense.
    """
    given = json.loads(json.dumps(dataclasses.asdict(fresh)))
    differing = [
        *_differing_targets(kept["job"]["target"], given["job"]["target"]),
        *_differing(kept["job"], given["job"], but=("target",)),
        *_differing(kept["context"], given["context"], but=("date",)),
    ]
    if differing:
        raise ConfigError(
            f"--json: {path} holds another job: {'; '.join(differing)}. Name another "
            "file, or remove it."
        )
    samples = (sample_from_dict(each) for each in kept["samples"])
    done = tuple(each for each in samples if each.is_measured)
    date = kept["context"]["date"]
    return dataclasses.replace(
        fresh, context=dataclasses.replace(fresh.context, date=date), samples=done
    )


def _differing_targets(kept: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    if found := _differing(kept, given, but=("digest",)):
        return found
    if kept["digest"] == given["digest"]:
        return []
    if not kept["digest"]:
        return [f"it does not say which text of {given['name']} was measured"]
    return [f"{given['name']} was edited since"]


def _differing(
    kept: Mapping[str, Any], given: Mapping[str, Any], but: Sequence[str] = ()
) -> list[str]:
    """Return which fields differ, and how."""
    return [
        f"{name} was {json.dumps(kept.get(name), ensure_ascii=False)}, "
        f"now {json.dumps(given[name], ensure_ascii=False)}"
        for name in given
        if name not in but and kept.get(name) != given[name]
    ]


def _standard(value: Any) -> Any:
    """Return a value without the numbers that JSON has no words for."""
    if isinstance(value, dict):
        return {name: _standard(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(each) for each in value]
    if isinstance(value, float) and value - value != 0.0:
        return None
    return value


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
