"""Options that several commands have, and values as given on a command line."""

from __future__ import annotations

import argparse
import math

from tf_amp.config import amp_config

# A year: what is longer is a mistake, and no timer of the system takes it.
MOST_SECONDS = 365 * 86400.0


def add_rows_to(parser: argparse.ArgumentParser, option: str, count: int) -> None:
    """Add how many rows are printed to a parser; None stands for all of them."""
    parser.add_argument(
        option,
        type=_count_from_text,
        default=count,
        metavar="N",
        help=f"rows to print ({count}); 0 for all",
    )


def add_rewriting_to(parser: argparse.ArgumentParser, levels: str) -> None:
    """Add the options that say how graphs are rewritten to a parser."""
    add = parser.add_argument
    add("--dtype", choices=amp_config.LOW_DTYPES, help="this device's by default")
    add("--opt-level", type=str.upper, metavar="LEVEL", help=levels)
    add("--device-profile", metavar="NAME", help="plan for this device")
    add(
        "--exclude",
        action="append",
        default=[],
        metavar="REGEX|@FILE",
        help="operations with such names stay float32; @FILE reads a list",
    )


def environment_from(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings for rewrites as variables of the environment."""
    given = {
        amp_config.DTYPE: options.dtype,
        amp_config.OPT_LEVEL: options.opt_level,
        amp_config.DEVICE_PROFILE: options.device_profile,
        amp_config.EXCLUDE: " ".join(options.exclude) if options.exclude else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _count_from_text(text: str) -> int | None:
    """Return a number of rows, as the `type` of an option; None: 0, for all of them."""
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
