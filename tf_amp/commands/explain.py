"""`tf-amp explain`: the plans of a SavedModel, or of a script, with the reasons."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TextIO

from tf_amp.commands.shared import json_output, left_alone, model_options
from tf_amp.commands.shared.arguments import count_from_text
from tf_amp.config import amp_config

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.planning.draft import Settings
    from grappler_pass.planning.plan import Plan
    from tf_amp.rewriting.host import Observer
    from tf_amp.tools.explain.prediction import Prediction

SUMMARY = "print the plans of a SavedModel or a script, with the reasons"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    model_options.add_to(parser)
    parser.add_argument(
        "--top",
        type=count_from_text,
        default=20,
        metavar="N",
        help="rows to print (20); 0 for all",
    )
    parser.add_argument("--json", action="store_true", help="print whole plans as JSON")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="run a SavedModel, and print what it takes too",
    )


def main(options: argparse.Namespace) -> int:
    """Plan what the command line names, print the plans, return the exit code.

    Raises:
      ConfigError: an option makes no sense.
      ScriptMissingError: there is no such SavedModel or script.
    """
    model_options.check(options)
    if not options.model.is_dir():
        return _explain_script(options)
    from tf_amp.tools.explain.signatures import explain_saved_model

    plans = explain_saved_model(
        options.model, options.signature, measure=options.measure
    )
    _print(plans, options, sys.stdout)
    return 0


def _explain_script(options: argparse.Namespace) -> int:
    """Run the script with its graphs planned, not changed; return its exit code."""
    from tf_amp.rewriting import host
    from tf_amp.tools import running_scripts

    found: dict[Hashable, Plan] = {}
    stream = json_output.stream_for(options)
    host.current().observers.append(_explainer(found))
    running_scripts.switch_on({amp_config.TUNE: "off"})
    code: object = None
    try:
        code = running_scripts.run_limited(
            str(options.model), options.script_arguments, options.seconds
        )
    finally:
        ranked = sorted(found.values(), key=lambda plan: -plan.seconds_before)
        _print(ranked, options, stream)
    if not found:
        print(f"tf-amp: {left_alone.why_no_graph()}.", file=sys.stderr)
    return running_scripts.exit_code_of(code)


def _explainer(found: dict[Hashable, Plan]) -> Observer:
    from grappler_pass import pipeline
    from tf_amp.measuring.fingerprint import digest_of_seeds

    def explain_graph(
        graph_def: GraphDef,
        item: Item,
        shapes: Callable[[], Shapes],
        name: str,
        settings: Settings,
    ) -> None:
        plan = pipeline.plan_graph(graph_def, item, settings, shapes=shapes, name=name)
        # The second of Grappler's two iterations has the graph that runs.
        found[name, item.fetch, digest_of_seeds(graph_def, shapes())] = plan

    return explain_graph


def _print(
    plans: Sequence[Plan | Prediction], options: argparse.Namespace, stream: TextIO
) -> None:
    from tf_amp.commands.shared import printing

    if options.json:
        rows = [json.loads(plan.to_json()) for plan in plans]
        print(json.dumps(rows, indent=1), file=stream, flush=True)
    else:
        printing.show(*(plan.top(options.top) for plan in plans))
