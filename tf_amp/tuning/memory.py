"""How much memory a measurement may hold, and how large the processor's cache is."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterable

# A measurement may hold this share of what is free at its start.
SHARE = 0.25
# Where the system does not tell: small enough for anything that trains a model.
_UNKNOWN_FREE_BYTES = 1 << 30
_UNKNOWN_CACHE_BYTES = 32 << 20

_CACHES = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY = pathlib.Path("/proc/meminfo")
_GROUP = pathlib.Path("/sys/fs/cgroup")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def most_bytes() -> int:
    """Return how many bytes a measurement may hold now: a quarter of what is free."""
    return int(SHARE * free_bytes())


def free_bytes() -> int:
    """Return what the machine and the process' control group leave."""
    limits = [limit for limit in (_machine_free(), _group_free()) if limit is not None]
    return min(limits, default=_UNKNOWN_FREE_BYTES)


@functools.cache
def cache_bytes() -> int:
    """Return the size of the last-level cache."""
    sizes = (_size(text) for text in _texts(sorted(_CACHES.glob("index*/size"))))
    return max((size for size in sizes if size), default=_UNKNOWN_CACHE_BYTES)


def _machine_free() -> int | None:
    for text in _texts([_MEMORY]):
        for line in text.splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _group_free() -> int | None:
    names = ("memory.max", "memory.current", "memory.stat")
    texts = list(_texts(_GROUP / name for name in names))
    if len(texts) < len(names) or not texts[0].strip().isdigit():
        return None
    # Pages of files count as used, but are given up for whoever needs memory.
    fields = (line.split() for line in texts[2].splitlines())
    spare = sum(int(field[1]) for field in fields if field[0] == "inactive_file")
    return max(int(texts[0]) - int(texts[1]) + spare, 0)


def _size(text: str) -> int:
    """Read "32768K"; 0 where it reads otherwise."""
    text = text.strip()
    number = text.rstrip("KMG")
    return int(number) * _UNITS.get(text[-1:], 1) if number.isdigit() else 0


def _texts(paths: Iterable[pathlib.Path]) -> Iterable[str]:
    for path in paths:
        try:
            yield path.read_text(errors="replace")
        except OSError:
            continue
