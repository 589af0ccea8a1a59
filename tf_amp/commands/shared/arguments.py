"""Values as given on a command line."""

from __future__ import annotations

import argparse
import math

# A year: what is longer is a mistake, and no timer of the system takes it.
MOST_SECONDS = 365 * 86400.0


def count_from_text(text: str) -> int | None:
    """Return a number of rows, as the `type` of an option; None: 0, for all of them.

    Raises:
      ArgumentTypeError: it is no whole number of 0 or more.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}; wanted is 0 or more")
    return int(text) or None


def seconds_from_text(text: str) -> float:
    """Return seconds, as the `type` of an option.

    Raises:
      ArgumentTypeError: it is no number, not greater than 0, or more than a year.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"received {text!r}; wanted are seconds, a number greater than 0 and at "
            f"most {MOST_SECONDS:.0f}"
        )
    return value
