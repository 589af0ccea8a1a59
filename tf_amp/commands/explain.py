"""`tf-amp explain`: the plans of a SavedModel, or of a script, with the reasons."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tf_amp.commands._shared import (
    DONE,
    FAILED,
    NOTHING,
    Options,
    Source,
    show_json,
)
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan
    from tf_amp.run.graph_cases import GraphCase
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
    options.rows("--top", 10)
    options.flag("--json", help="print whole plans as JSON")
    options.flag("--verbose", help="begin each plan with a line for developers")
    options.flag("--measure", help="run a SavedModel, and print what it takes too")


def main(options: argparse.Namespace) -> int:
    """Plan what the command line names, print the plans, return the exit code."""
    source = Source(options)
    check_tensorflow()
    from rich.text import Text

    from grappler_pass.costs import DeviceProfile
    from grappler_pass.pipeline import draft_graph
    from tf_amp.config import devices, scope_registry
    from tf_amp.report.display import show
    from tf_amp.report.plans import tables_of
    from tf_amp.tools.explanation import explain_saved_model, foreseeing
    from tf_amp.tools.prediction import Prediction

    def print_plans(plans: Iterable[Plan | Prediction]) -> None:
        if options.json:
            show_json(plans, source.stream)
        else:
            named = scope_registry.base_config().device_profile
            if named is not None:
                note = devices.note_on_other_machine(DeviceProfile.load(named))
                show(*filter(None, [note]))
            for each in plans:
                plan = each.plan if isinstance(each, Prediction) else each
                if options.verbose:
                    show(Text(plan.details()))
                tables = tables_of(plan, options.top)
                if isinstance(each, Prediction):
                    tables = each.top(options.top).tables_of(tables)
                show(tables)

    def look(case: GraphCase) -> Plan:
        return draft_graph(
            case.graph_def,
            case.item,
            foreseeing(case.settings),
            shapes=lambda: case.shapes,
            name=case.name,
        ).plan

    def print_ranked(plans: Iterable[Plan]) -> None:
        ranked = sorted(plans, key=lambda plan: -plan.seconds_before)
        print_plans(ranked)

    if not source.is_model:
        return source.run_observed(look, print_ranked, {}, lambda plan: plan.is_empty)
    print_plans(
        explain_saved_model(
            options.model,
            options.signature,
            measure=options.measure,
            batch=options.batch,
        )
    )
    return DONE
