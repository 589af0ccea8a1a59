"""Hold programs of users against casting by hand: python -m tests.programs_of_users.

A seed is the place of a program in the catalog. Each is planned at O1 and O2 in both
types, by the prices of a CPU, of an A100 and of an H100, and run on this machine; no
error may exceed three times what it is when the operands of its products are cast by
hand. Exit code 0 when the rule holds.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from tests.campaign import Command
from tests.programs_of_users.catalog import BY_NAME, check

_NAMES = tuple(BY_NAME)


def _check(seed: int) -> dict[str, Any]:
    outcome = check(_NAMES[seed])
    return {
        "failures": [
            f"{_NAMES[seed]}, {plan}: {finding}"
            for plan, finding in outcome.failures.items()
        ],
        **outcome.counts,
    }


def _reproduce(seed: int) -> bool:
    outcome = _check(seed)
    print(_NAMES[seed], *outcome["failures"], sep="\n  ")
    print(f"{outcome['rewritten']} rewritings, {outcome['undecided']} undecided")
    return not outcome["failures"]


def _summary(totals: Counter[str]) -> str:
    return (
        f"rewritten in {totals['rewritten']} ways, "
        f"{totals['undecided']} of {totals['results']} results without a verdict"
    )


COMMAND = Command(
    "tests.programs_of_users",
    __doc__,
    _check,
    _reproduce,
    _summary,
    count=len(_NAMES),
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
