"""`tf-amp audit`: of a SavedModel, or of the graphs of a script while it runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TextIO

from tf_amp.commands.shared import json_output, left_alone, model_options
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.planning.draft import Settings
    from tf_amp.rewriting.host import Observer
    from tf_amp.tools.audit.audits import Audit
    from tf_amp.tools.target_device import Target

SUMMARY = "predict what mixed precision gains on a device that need not be present"


def main(options: argparse.Namespace) -> int:
    """Audit what the command line names and print the reports.

    Raises:
      ConfigError: an option makes no sense; the message names what is allowed.
      ScriptMissingError: there is no such SavedModel or script.
    """
    model_options.check(options)

    check_tensorflow()
    from tf_amp.tools import target_device
    from tf_amp.tools.audit import audits as auditing

    target = target_device.target_of(options.device_profile, options.dtype)
    if options.model.is_dir():
        audits = auditing.audit_saved_model(
            options.model, target, options.signature, options.batch
        )
        _print(audits, options, sys.stdout)
        return 0
    return _audit_script(options, target)


def _audit_script(options: argparse.Namespace, target: Target) -> int:
    """Run the script with its graphs planned, not changed; return its exit code."""
    from tf_amp.rewriting import host
    from tf_amp.tools import running_scripts

    found: dict[Hashable, Audit] = {}
    stream = json_output.stream_for(options)
    host.current().observers.append(_auditor(target, found))
    running_scripts.switch_on({})
    code: object = None
    try:
        code = running_scripts.run_limited(
            str(options.model), options.script_arguments, options.seconds
        )
    finally:
        _print(tuple(found.values()), options, stream)
    if not found:
        print(f"tf-amp: {left_alone.why_no_graph()}.", file=sys.stderr)
    return running_scripts.exit_code_of(code)


def _auditor(target: Target, found: dict[Hashable, Audit]) -> Observer:
    from tf_amp.measuring.fingerprint import digest_of_seeds
    from tf_amp.tools.audit import audits as auditing

    def audit_graph(
        graph_def: Any,
        item: Item,
        shapes: Callable[[], Shapes],
        name: str,
        settings: Settings,
    ) -> None:
        placed = target.placed(graph_def)
        audit = auditing.audit_graph(placed, item, target, shapes=shapes, name=name)
        # The second of Grappler's two iterations has the graph that runs.
        found[name, item.fetch, digest_of_seeds(graph_def, shapes())] = audit

    return audit_graph


def _print(
    audits: tuple[Audit, ...], options: argparse.Namespace, stream: TextIO
) -> None:
    from tf_amp.tools.audit import report as audit_report

    ranked = sorted(audits, key=lambda audit: -audit.plan.seconds_before)
    if options.json:
        rows = [audit.to_json() for audit in ranked]
        print(json.dumps(rows, indent=1), file=stream, flush=True)
        return
    audit_report.print_audits(ranked)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    model_options.add_to(parser)
    parser.add_argument(
        "--device-profile",
        required=True,
        metavar="NAME",
        help="v100, t4, a100, h100, ...; need not be present",
    )
    parser.add_argument("--dtype", help="bfloat16 or float16; the device's by default")
    parser.add_argument(
        "--batch", type=int, metavar="N", help="for unknown first dimensions of inputs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
