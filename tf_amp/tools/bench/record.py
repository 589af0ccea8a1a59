"""All that a measurement keeps, as the JSON file from which it is gone on with."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tf_amp.errors import ConfigError
from tf_amp.tools.bench.context import Context
from tf_amp.tools.bench.job import Job
from tf_amp.tools.bench.samples import Sample, sample_from_dict
from tf_amp.tools.bench.summary import summarized
from tf_amp.tools.whole_files import write_whole

_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Record:
    """What was measured, where, and of what."""

    job: Job
    context: Context
    samples: tuple[Sample, ...] = ()

    def with_sample(self, sample: Sample) -> Record:
        """Return the record with one sample more."""
        return dataclasses.replace(self, samples=(*self.samples, sample))

    def write(self, path: pathlib.Path) -> None:
        """Write it, with the summary that readers need not make again.

        Raises:
          ConfigError: the file cannot be written; what was there before stays.
        """
        rows = [dataclasses.asdict(row) for row in summarized(self.job, self.samples)]
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
    except (OSError, ValueError) as error:
        raise ConfigError(f"--json: {path} cannot be read: {error}.") from error
    if not isinstance(kept, dict) or kept.get("version") != _VERSION:
        raise ConfigError(f"--json: {path} was not written by `tf-amp bench`.")
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
        return [f"it does not tell which text of {given['name']} was measured"]
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
