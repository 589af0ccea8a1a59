"""`tf-amp convert`: a stored model to mixed precision, or one of ours back."""

from __future__ import annotations

import argparse
import inspect

from tf_amp.commands import _shared
from tf_amp.commands._shared import DONE, FAILED, Options, say
from tf_amp.tools.convert.conversion import convert

SUMMARY = "convert a stored model to mixed precision, or back"
EXITS = {
    DONE: "OUT is written",
    FAILED: "OUT is written, but its numbers do not hold (--verify)",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    add = options.add
    options.path(
        "source",
        metavar="IN",
        help="a SavedModel, a .keras file or a frozen graph (.pb)",
    )
    options.path(
        "target",
        metavar="OUT",
        help="where to write a SavedModel folder; of a frozen graph, a .pb file",
    )
    options.rewriting("O0 to O3")
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
    options.checked(
        "--calibration",
        _shared.check_file,
        metavar="NPZ",
        help="inputs; what leaves the type's range on them stays float32",
    )
    options.flag("--verify", help="run both models and compare")
    options.batch()
    add(
        "--to",
        choices=("mixed", "float32"),
        default="mixed",
        help="float32: take a converted model back",
    )
    options.flag("--allow-lambda", help="run Python code that a .keras file holds")
    options.flag("--overwrite", help="replace OUT")
    options.flag("--json", help="print the report as JSON")


def main(options: argparse.Namespace) -> int:
    """Convert what the command line names, and print the report.

    Where a verification failed the exit code is 1, and the result written all the same.
    """
    # Options have the names of its arguments.
    arguments = {
        name: getattr(options, name) for name in inspect.signature(convert).parameters
    }
    with _shared.progress_shown():
        report = convert(**arguments)
    if options.json:
        print(report.to_json())
    else:
        from tf_amp.report.display import show

        show(report)
    if report.is_verified:
        return DONE
    say("the numbers do not hold; see above.")
    return FAILED
