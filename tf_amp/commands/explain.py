"""`tf-amp explain`: the plan of a SavedModel, with the reasons."""

from __future__ import annotations

import argparse
import json
import pathlib

from tf_amp.commands.shared.arguments import count_from_text

SUMMARY = "print the plan of a SavedModel, with the reasons"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument(
        "saved_model", type=pathlib.Path, metavar="SAVED_MODEL", help="its folder"
    )
    parser.add_argument(
        "--signature", metavar="NAME", help="only this one; all by default"
    )
    parser.add_argument(
        "--top",
        type=count_from_text,
        default=20,
        metavar="N",
        help="rows to print (20); 0 for all",
    )
    parser.add_argument("--json", action="store_true", help="print whole plans as JSON")
    parser.add_argument(
        "--measure", action="store_true", help="run it, and print what it takes too"
    )


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tf_amp.commands.shared import printing
    from tf_amp.tools.explain.signatures import explain_saved_model

    plans = explain_saved_model(
        options.saved_model, options.signature, measure=options.measure
    )
    if options.json:
        print(json.dumps([json.loads(plan.to_json()) for plan in plans], indent=1))
    else:
        printing.show(*(plan.top(options.top) for plan in plans))
    return 0
