"""What was measured on one device: seconds by probe and dtype, shared by a process.

Filled from the database at first, then by what the process itself measures. Prices are
made of it in `model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from grappler_pass.costs.database.probes import Probe
from grappler_pass.fork_safety import renewed_lock


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured figure.

    Attributes:
        seconds: median of one execution, on data in the cache.
        cold_seconds: the same on data that is not; equal where it makes no difference.
        spread: standard deviation of the logarithm of the seconds.
        count: executions timed.
        when: seconds since 1970.
    """

    seconds: float
    cold_seconds: float
    spread: float
    count: int
    when: float


class Measured(NamedTuple):
    """One row of the list: what was run, at which dtype, and the outcome."""

    probe: Probe
    dtype: str
    sample: Sample


class PriceList:
    """Samples by (key of the probe, dtype); threads may read and add at once."""

    def __init__(self, rows: Iterable[Measured] = ()) -> None:
        """Start from `rows`; of two for one probe and dtype the last counts."""
        self._lock = renewed_lock()
        self._rows: dict[tuple[str, str], Measured] = {}
        self._version = 0
        self.add(rows)

    @property
    def version(self) -> int:
        """Grows whenever something is added."""
        return self._version

    def add(self, rows: Iterable[Measured]) -> None:
        """Add rows, in place of older ones for the same probe and dtype."""
        new = {(row.probe.key, row.dtype): row for row in rows}
        with self._lock:
            self._rows.update(new)
            self._version += bool(new)

    def get(self, key: str, dtype: str) -> Sample | None:
        """Return what was measured for the probe with this key at this dtype."""
        row = self._rows.get((key, dtype))
        return row.sample if row else None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Measured]:
        """Yield the rows there are now."""
        with self._lock:
            rows = list(self._rows.values())
        return iter(rows)
