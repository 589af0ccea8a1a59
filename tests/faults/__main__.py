"""Plant faults in a copy of the sources and see which tests find them.

`python -m tests.faults [NUMBER or WORD ...]` takes those whose number is given, or
whose sentence has all words, less those that the table names already; exit code 0 when
all of them are found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.faults import table
from tests.faults.campaign import Campaign
from tests.faults.fault import Fault, all_faults


def chosen(words: Sequence[str]) -> list[Fault]:
    """Return the faults with a number or with all words, all of them without any."""
    if words and all(word.isdigit() for word in words):
        return [all_faults()[int(word) - 1] for word in words]
    return [
        fault
        for fault in all_faults()
        if all(word.lower() in fault.sentence.lower() for word in words)
    ]


def main() -> int:
    """Run the command line."""
    options = _parser().parse_args()
    faults, rows = chosen(options.words), table.read()
    if options.list:
        for number, fault in enumerate(all_faults(), 1):
            if fault in faults:
                row = rows.get(fault.sentence, "not sought")
                print(f"{number:3} {fault.sentence}\n    {row}")
        return 0
    if not options.again:
        faults = [fault for fault in faults if fault.sentence not in rows]
    if not faults:
        print("Nothing to seek: --list shows what is known, --again seeks it again.")
        return 0
    return 0 if Campaign(faults, first_only=options.first).run(options.jobs) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="numbers, or words of the sentence")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--list", action="store_true", help="show them, seek nothing")
    parser.add_argument("--again", action="store_true", help="also what was sought")
    parser.add_argument(
        "--first", action="store_true", help="ask only the tests named with the fault"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
