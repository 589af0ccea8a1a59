"""`tf-amp explain`: the plans of a SavedModel, or of a script, with the reasons."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from tf_amp.commands.shared import arguments, printing, script_graphs
from tf_amp.commands.shared.arguments import add_rows_to
from tf_amp.commands.shared.exit_codes import DONE, FAILED, NOTHING
from tf_amp.config import amp_config
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan
    from tf_amp.tools.explain.prediction import Prediction

SUMMARY = "print the plans of a SavedModel or a script, with the reasons"
TAKES_SCRIPT = True
EXITS = {
    DONE: "the plans are printed",
    FAILED: "the script failed",
    NOTHING: "the script had no graph to plan",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    arguments.add_model_to(parser)
    arguments.add_batch_to(parser)
    add_rows_to(parser, "--top", 20)
    parser.add_argument("--json", action="store_true", help="print whole plans as JSON")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="run a SavedModel, and print what it takes too",
    )


def main(options: argparse.Namespace) -> int:
    """Plan what the command line names, print the plans, return the exit code."""
    arguments.check_model(options)
    check_tensorflow()
    from grappler_pass.pipeline import plan_graph
    from tf_amp.tools.explain.explanation import explain_saved_model

    def show(plans: Sequence[Plan | Prediction], stream: TextIO) -> None:
        if options.json:
            printing.show_json(plans, stream)
        else:
            printing.show(*(plan.top(options.top) for plan in plans))

    def show_ranked(plans: Sequence[Plan], stream: TextIO) -> None:
        ranked = sorted(plans, key=lambda plan: -plan.seconds_before)
        show(ranked, stream)

    if not options.model.is_dir():
        untuned = {amp_config.TUNE: "off"}
        return script_graphs.run_observed(options, plan_graph, show_ranked, untuned)
    plans = explain_saved_model(
        options.model,
        options.signature,
        measure=options.measure,
        batch=options.batch,
    )
    show(plans, sys.stdout)
    return DONE
