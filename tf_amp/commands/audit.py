"""`tf-amp audit`: of a SavedModel, or of the graphs of a script while it runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, TextIO

from tf_amp.commands import _results
from tf_amp.commands._options import Options, check_model
from tf_amp.commands._results import DONE, FAILED, NOTHING
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.graph.view import Item
    from grappler_pass.planning.draft import Settings
    from tf_amp.tools.audit import Audit

SUMMARY = "predict what mixed precision gains on a device that need not be present"
TAKES_SCRIPT = True
EXITS = {
    DONE: "the audits are printed",
    FAILED: "the script failed",
    NOTHING: "the script had no graph to audit",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    options.model()
    options.setting(
        "device_profile",
        required=True,
        help="v100, t4, a100, h100, ...; need not be present",
    )
    options.add("--dtype", choices=LOW_DTYPES, help="the device's by default")
    options.batch()
    options.flag("--json", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Audit what the command line names and print the reports."""
    check_model(options)
    check_tensorflow()
    from tf_amp.tools import audit as auditing
    from tf_amp.tools import target_device
    from tf_amp.tools.audit import print_audits

    target = target_device.target_of(options.device_profile, options.dtype)

    def look(graph_def: Any, item: Item, settings: Settings, **known: Any) -> Audit:
        placed, is_compiled = target.placed(graph_def), settings.fuses
        draft = auditing.planned(placed, item, target, is_compiled=is_compiled, **known)
        return auditing.audit_draft(draft, target)

    def show(audits: tuple[Audit, ...], stream: TextIO) -> None:
        ranked = sorted(audits, key=lambda audit: -audit.plan.seconds_before)
        if options.json:
            _results.show_json((audit.to_json() for audit in ranked), stream)
        else:
            print_audits(ranked)

    if not options.model.is_dir():
        return _results.run_observed(options, look, show, {})
    audits = auditing.audit_saved_model(
        options.model, target, options.signature, options.batch
    )
    show(audits, sys.stdout)
    return DONE
