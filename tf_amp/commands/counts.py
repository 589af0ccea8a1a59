"""How many rows to print, as given on a command line."""

from __future__ import annotations

import argparse


def count_from_text(text: str) -> int | None:
    """Return a number of rows, as the `type` of an option; None: 0, for all of them.

    Raises:
      ArgumentTypeError: it is no whole number of 0 or more.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}; wanted is 0 or more")
    return int(text) or None
