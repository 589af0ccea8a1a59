"""How kernels came out on this machine: a file per machine, and what ships with tf-amp.

A file is one JSON object: "machine" says of which, "kernels" has for each kernel, by
its key, what was wrong with it; "" of those that are right.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Iterator, Mapping

from grappler_pass.fork_safety import per_process
from tf_amp.measuring.kept_file import (
    Fields,
    KeptFile,
    fields_from,
    is_line,
    mapping_in,
)

_SHIPPED = pathlib.Path(__file__).parent / "shipped"
_PART = "kernels"


class Outcomes:
    """What is known of the kernels of one machine; several threads may use it."""

    def __init__(self, machine: str, path: pathlib.Path | None) -> None:
        """Read what ships with tf-amp, and what a file has; None: nothing is kept."""
        self.machine = machine
        self._file = KeptFile(path, _PART)
        kept = _kernels_in(self._file.read(), machine)
        self._known: dict[str, str] = {**shipped(machine), **kept}
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

        def change(fields: Fields) -> None:
            kernels = {**_kernels_in(fields, self.machine), **found}
            fields["machine"] = self.machine
            fields[_PART] = dict(sorted(kernels.items()))

        self._file.change(change)


def outcomes_path(cache_dir: pathlib.Path, machine: str) -> pathlib.Path:
    """Return where the outcomes of a machine are kept in the user's cache folder."""
    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    return cache_dir / "kernels" / f"{digest}.json"


def shipped(machine: str) -> dict[str, str]:
    """Return what is known of the kernels of a machine before any of them has run."""
    files = (
        fields_from(p.read_text(encoding="utf-8"), _PART) for p in _shipped_files()
    )
    return next(filter(None, (_kernels_in(each, machine) for each in files)), {})


def _shipped_files() -> Iterator[pathlib.Path]:
    yield from sorted(_SHIPPED.glob("*.json"))


def _kernels_in(fields: Fields, machine: str) -> dict[str, str]:
    """Return the outcomes that make sense; none where they are of another machine."""
    if fields.get("machine") != machine:
        return {}
    kernels = mapping_in(fields, _PART).items()
    return {key: fault for key, fault in kernels if is_line(key) and is_line(fault)}


@functools.cache
def outcomes_of(machine: str, cache_dir: pathlib.Path | None) -> Outcomes:
    """Return what this process knows of the kernels of a machine."""
    path = None if cache_dir is None else outcomes_path(cache_dir, machine)
    return Outcomes(machine, path)


# What a parent has found since is in the file.
per_process(outcomes_of.cache_clear)
