"""Which tests found which fault, as a JSON file beside the list of faults."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Collection, Mapping

from tests.faults.fault import all_faults

TABLE = pathlib.Path(__file__).with_name("found.json")
_MOST_NAMES = 5


@dataclasses.dataclass(frozen=True)
class Row:
    """What came of one fault.

    Attributes:
      date: of the run.
      asked: the tests that ran, in words.
      found_by: the first tests that failed with the fault, and pass without it.
      count: how many did.
    """

    date: str
    asked: str
    found_by: tuple[str, ...]
    count: int

    @classmethod
    def of(cls, failed: Collection[str], *, asked: str, date: str) -> Row:
        """Return the row of the tests that failed."""
        return cls(date, asked, tuple(failed)[:_MOST_NAMES], len(failed))

    def __str__(self) -> str:
        if not self.count:
            return f"found by none of the {self.asked}"
        more = self.count - len(self.found_by)
        names = ", ".join(self.found_by) + (f" and {more} more" if more else "")
        return f"found by {names}"


def read() -> dict[str, Row]:
    """Return the rows by the sentences of the faults."""
    rows = json.loads(TABLE.read_text())
    return {
        sentence: Row(**{**row, "found_by": tuple(row["found_by"])})
        for sentence, row in rows.items()
    }


def write(rows: Mapping[str, Row]) -> None:
    """Write the rows of the list's faults in its order, and no others."""
    kept = {
        fault.sentence: dataclasses.asdict(rows[fault.sentence])
        for fault in all_faults()
        if fault.sentence in rows
    }
    TABLE.write_text(json.dumps(kept, indent=1) + "\n")
