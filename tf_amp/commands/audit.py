"""`tf-amp audit`: of a SavedModel, or of the graphs of a script while it runs."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tf_amp.commands._shared import DONE, FAILED, NOTHING, Options, Source, show_json
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from tf_amp.run.graph_cases import GraphCase
    from tf_amp.tools.audit import Audit

SUMMARY = "predict what mixed precision gains here, or on a device that is not present"
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
        help="v100, t4, a100, h100, ...; need not be present; this one by default",
    )
    options.add("--dtype", choices=LOW_DTYPES, help="the device's by default")
    options.batch()
    options.flag("--json", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Audit what the command line names and print the reports."""
    source = Source(options)
    check_tensorflow()
    from tf_amp.tools import audit as auditing
    from tf_amp.tools import target_device

    @functools.cache
    def target() -> target_device.Target:
        return target_device.target_of(options.device_profile, options.dtype)

    if options.device_profile is not None:
        # What is wrong with it is said before the script runs.
        target()

    def print_ranked(audits: Iterable[Audit]) -> None:
        ranked = sorted(audits, key=lambda audit: -audit.plan.seconds_before)
        if options.json:
            show_json((audit.to_json() for audit in ranked), source.stream)
        else:
            auditing.print_audits(ranked, target())

    if not source.is_model:

        def look(case: GraphCase) -> Audit:
            return auditing.audit_case(case, target())

        return source.run_observed(look, print_ranked, {})
    print_ranked(
        auditing.audit_saved_model(
            options.model, target(), options.signature, options.batch
        )
    )
    return DONE
