"""`tf-amp explain`: the plans of a SavedModel, or of a script, with the reasons."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from tf_amp.commands import _results
from tf_amp.commands._options import Options, check_model
from tf_amp.commands._results import DONE, FAILED, NOTHING
from tf_amp.config.amp_config import TUNE
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan
    from tf_amp.tools.prediction import Prediction

SUMMARY = "print the plans of a SavedModel or a script, with the reasons"
TAKES_SCRIPT = True
EXITS = {
    DONE: "the plans are printed",
    FAILED: "the script failed",
    NOTHING: "the script had no graph to plan",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    options.model()
    options.batch()
    options.rows("--top", 20)
    options.flag("--json", help="print whole plans as JSON")
    options.flag("--measure", help="run a SavedModel, and print what it takes too")


def main(options: argparse.Namespace) -> int:
    """Plan what the command line names, print the plans, return the exit code."""
    check_model(options)
    check_tensorflow()
    from grappler_pass.pipeline import plan_graph
    from tf_amp.tools.explanation import explain_saved_model

    def show(plans: Sequence[Plan | Prediction], stream: TextIO = sys.stdout) -> None:
        if options.json:
            _results.show_json(plans, stream)
        else:
            _results.show(*(plan.top(options.top) for plan in plans))

    def show_ranked(plans: Sequence[Plan], stream: TextIO) -> None:
        ranked = sorted(plans, key=lambda plan: -plan.seconds_before)
        show(ranked, stream)

    if not options.model.is_dir():
        untuned = {TUNE: "off"}
        return _results.run_observed(options, plan_graph, show_ranked, untuned)
    plans = explain_saved_model(
        options.model,
        options.signature,
        measure=options.measure,
        batch=options.batch,
    )
    show(plans)
    return DONE
