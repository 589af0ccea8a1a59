"""Plant faults in a copy of the sources and see which tests find them.

`python -m tests.faults [NUMBER or WORD ...]` takes those whose number is given, or
whose sentence has all words, less those that the tables name already; exit code 0 when
all of them are found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.faults import table
from tests.faults.campaign import Campaign, Job
from tests.faults.fault import lists


def all_jobs() -> list[Job]:
    """Return all faults, in order."""
    return [Job(name, fault) for name, faults in lists().items() for fault in faults]


def chosen(words: Sequence[str]) -> list[Job]:
    """Return the faults with a number or with all words, all of them without any."""
    jobs = all_jobs()
    if words and all(word.isdigit() for word in words):
        return [jobs[int(word) - 1] for word in words]
    return [
        job
        for job in jobs
        if all(word.lower() in job.fault.sentence.lower() for word in words)
    ]


def main() -> int:
    """Run the command line."""
    options = _parser().parse_args()
    jobs = chosen(options.words)
    if options.list:
        for number, job in enumerate(all_jobs(), 1):
            if job in jobs:
                row = table.read(job.list_name).get(job.fault.sentence, "not sought")
                print(f"{number:3} {job.fault.sentence}\n    {row}")
        return 0
    if not options.again:
        jobs = [job for job in jobs if not _is_sought(job)]
    if not jobs:
        print("Nothing to seek: --list shows what is known, --again seeks it again.")
        return 0
    return 0 if Campaign(jobs, first_only=options.first).run(options.jobs) else 1


def _is_sought(job: Job) -> bool:
    return job.fault.sentence in table.read(job.list_name)


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
