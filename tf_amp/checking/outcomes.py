"""How kernels came out on this machine: a file per machine, and what ships with tf-amp.

A file is one JSON object: "machine" says of which, "kernels" has for each kernel, by
its key, what was wrong with it; "" of those that are right.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping

from absl import logging

from grappler_pass.costs.atomic_file import replacing
from grappler_pass.fork_safety import per_process
from tf_amp.message_codes import Code

_SHIPPED = pathlib.Path(__file__).parent / "shipped"
_FORMAT = 1


class Outcomes:
    """What is known of the kernels of one machine; several threads may use it."""

    def __init__(self, machine: str, path: pathlib.Path | None) -> None:
        """Read what ships with tf-amp, and what a file has; None: nothing is kept."""
        self.machine = machine
        self._path = path
        self._known: dict[str, str] = {**shipped(machine), **self._kept()}
        self._wrong = {key: fault for key, fault in self._known.items() if fault}

    def __contains__(self, key: str) -> bool:
        """Return whether a kernel was checked."""
        return key in self._known

    def fault(self, key: str) -> str:
        """Return what is wrong with a kernel; "" if that is right, or not known."""
        return self._wrong.get(key, "")

    @property
    def wrong(self) -> Mapping[str, str]:
        """What is wrong with kernels, by key."""
        return dict(self._wrong)

    def add(self, found: Mapping[str, str]) -> None:
        """Remember how kernels came out, in the file, too, with what others found."""
        self._known.update(found)
        self._wrong.update({key: fault for key, fault in found.items() if fault})
        if self._path is None:
            return
        kernels = {**self._kept(), **found}
        fields = {"format": _FORMAT, "machine": self.machine, "kernels": kernels}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                json.dump(fields, file, indent=0, sort_keys=True)
        except OSError as error:
            Code.NOT_WRITTEN.warn_once(
                "Which kernels are right is not kept: %s cannot be written: %s",
                self._path,
                error,
            )

    def _kept(self) -> dict[str, str]:
        if self._path is None or not self._path.is_file():
            return {}
        try:
            return _kernels_in(self._path.read_text(encoding="utf-8"), self.machine)
        except (OSError, ValueError) as error:
            logging.warning("kernels are checked again: %s: %s", self._path, error)
            return {}


def outcomes_path(cache_dir: pathlib.Path, machine: str) -> pathlib.Path:
    """Return where the outcomes of a machine are kept in the user's cache folder."""
    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    return cache_dir / "kernels" / f"{digest}.json"


def shipped(machine: str) -> dict[str, str]:
    """Return what is known of the kernels of a machine before any of them has run."""
    texts = (path.read_text(encoding="utf-8") for path in _shipped_files())
    return next(filter(None, (_kernels_in(text, machine) for text in texts)), {})


def _shipped_files() -> Iterator[pathlib.Path]:
    yield from sorted(_SHIPPED.glob("*.json"))


def _kernels_in(text: str, machine: str) -> dict[str, str]:
    """Return the outcomes in a file; none where it is of another machine.

    Raises:
      ValueError: it is no such file.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise ValueError("no outcomes of kernels, or of another version")
    if fields.get("machine") != machine:
        return {}
    kernels = fields.get("kernels")
    if not isinstance(kernels, dict):
        raise ValueError("it has no kernels")
    return {str(key): str(fault) for key, fault in kernels.items()}


@functools.cache
def outcomes_of(machine: str, cache_dir: pathlib.Path | None) -> Outcomes:
    """Return what this process knows of the kernels of a machine."""
    path = None if cache_dir is None else outcomes_path(cache_dir, machine)
    return Outcomes(machine, path)


# What a parent has found since is in the file.
per_process(outcomes_of.cache_clear)
