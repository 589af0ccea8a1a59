"""`tf-amp convert`: a stored model to mixed precision, or one of ours back."""

from __future__ import annotations

import argparse
import inspect
import pathlib
import sys

from tf_amp.commands.shared import printing
from tf_amp.commands.shared.arguments import (
    add_batch_to,
    add_checked_to,
    add_rewriting_to,
    check_file,
)
from tf_amp.commands.shared.exit_codes import DONE, FAILED
from tf_amp.tools.convert.conversion import convert

SUMMARY = "convert a stored model to mixed precision, or back"
EXITS = {
    DONE: "OUT is written",
    FAILED: "OUT is written, but its numbers do not hold (--verify)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "source",
        metavar="IN",
        type=pathlib.Path,
        help="a SavedModel, a .keras file or a frozen graph (.pb)",
    )
    add(
        "target",
        metavar="OUT",
        type=pathlib.Path,
        help="where to write a SavedModel folder; of a frozen graph, a .pb file",
    )
    add_rewriting_to(parser, "O0 to O3")
    add(
        "--keep-io",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="signatures keep their dtypes (default), or take and give 16 bits",
    )
    add(
        "--weights",
        choices=("float32", "low"),
        default="float32",
        help="store matrices in float32 (default) or in 16 bits",
    )
    add_checked_to(
        parser,
        "--calibration",
        check_file,
        metavar="NPZ",
        help="inputs; what leaves the type's range on them stays float32",
    )
    add("--verify", action="store_true", help="run both models and compare")
    add_batch_to(parser)
    add(
        "--to",
        choices=("mixed", "float32"),
        default="mixed",
        help="float32: take a converted model back",
    )
    add(
        "--allow-lambda",
        action="store_true",
        help="run Python code that a .keras file holds",
    )
    add("--overwrite", action="store_true", help="replace OUT")
    add("--json", action="store_true", help="print the report as JSON")


def main(options: argparse.Namespace) -> int:
    """Convert what the command line names, and print the report.

    Where a verification failed the exit code is 1, and the result written all the same.
    """
    # Options have the names of its arguments.
    given = {
        name: getattr(options, name) for name in inspect.signature(convert).parameters
    }
    with printing.progress_shown():
        report = convert(**given)
    print(report.to_json() if options.json else report)
    if report.is_verified:
        return DONE
    print("tf-amp: the numbers do not hold; see above.", file=sys.stderr)
    return FAILED
