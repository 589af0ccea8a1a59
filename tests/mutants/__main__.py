"""Change one operator or number of a room at a time and see whether tests notice.

`python -m tests.mutants [ROOM ...]` draws mutants of the rooms in `rooms.py` in a copy
of the sources and writes what survived to `tests/mutants/survivors.json`. It takes
cosmic-ray, from `pip install -e '.[mutants]'`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.faults.tree_copy import TreeCopy
from tests.mutants.rooms import ROOMS, SEED

TABLE = pathlib.Path(__file__).with_name("survivors.json")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__
    )
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], metavar="ROOM")
    parser.add_argument("--count", type=int, default=100, help="mutants of each room")
    parser.add_argument("--again", action="store_true", help="also those in the table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = TreeCopy(pathlib.Path(folder, "sources").resolve())
        for room in options.rooms or ROOMS:
            known = {} if options.again else _table().get(room, {})
            for outcome in _outcomes(copy, room, known.get("drawn", 0), options.count):
                _note(room, outcome)
    return 0


def _table() -> dict[str, dict[str, Any]]:
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


def _outcomes(
    copy: TreeCopy, room: str, known: int, count: int
) -> Iterator[dict[str, Any]]:
    """Yield what became of each mutant, as `in_copy` prints it."""
    module = "tests.mutants.in_copy"
    command = [sys.executable, "-m", module, room, str(known), str(count)]
    with subprocess.Popen(
        command, cwd=copy.folder, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            outcome = json.loads(line)
            word = "SURVIVES" if outcome["survives"] else "is noticed"
            print(f"{outcome['number']} {word} {outcome['change']}", flush=True)
            yield outcome
    if process.returncode:
        sys.exit(process.returncode)


def _note(room: str, outcome: dict[str, Any]) -> None:
    """Add to the table what became of a mutant of a room."""
    table, drawn = _table(), outcome["number"]
    survivors = table[room]["survivors"] if drawn > 1 else []
    survivors += [outcome["change"]] if outcome["survives"] else []
    table[room] = {
        "date": datetime.date.today().isoformat(),
        "seed": SEED,
        "mutants": outcome["of"],
        "drawn": drawn,
        "survived": len(survivors),
        "share": round(len(survivors) / drawn, 3),
        "survivors": survivors,
    }
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
