"""`tf-amp doctor`: whether mixed precision works here, and how to fix it if not.

This module looks at what needs neither TensorFlow nor any other package, so that it
has an answer in a broken installation too; `doctor_checks` looks at the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable

from tf_amp.commands.shared.exit_codes import DONE, FAILED
from tf_amp.commands.shared.findings import (
    COPY,
    FIX_SETTING,
    REINSTALL,
    Finding,
    Findings,
    settings_set_aside,
    show,
)
from tf_amp.config.amp_config import (
    REWRITE_SWITCH,
    SWITCH,
    AmpConfig,
    settings_set,
    switches_set,
)
from tf_amp.errors import AmpError
from tf_amp.runtime import autostart

SUMMARY = "say whether it works here, and how to fix it"
EXITS = {DONE: "healthy", FAILED: "not healthy"}
# What is imported, and what installs it; TensorFlow has a check of its own.
DEPENDENCIES = (
    ("absl", "absl-py"),
    ("numpy", "numpy"),
    ("google.protobuf", "protobuf"),
    ("rich", "rich"),
    ("scipy", "scipy"),
    ("wrapt", "wrapt"),
)
_BY_HAND = "call tf_amp.enable() in the script, or start it with: tf-amp run SCRIPT"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument(
        "--learned", action="store_true", help="what steps have taught about prices"
    )
    parser.add_argument(
        "--json", action="store_true", help="print what is found as JSON"
    )


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if options.learned:
        from tf_amp.commands.shared import learned_table

        learned_table.show(as_json=options.json)
        return 0
    return report_health(as_json=options.json)


def report_health(*, as_json: bool = False) -> int:
    """Print what is found; return the exit code."""
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            show(finding)
    healthy = not _is_fatal(findings)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"healthy": healthy, "findings": rows}, indent=1))
    else:
        print("healthy" if healthy else "not healthy: see the lines marked FAIL")
    return DONE if healthy else FAILED


def examine() -> Findings:
    """Yield every finding; those that need TensorFlow only where it works.

    Settings that cannot be used are one finding, and set aside for the rest of them.
    """
    found = tuple(_configuration())
    yield from found
    yield from _start()
    missing = [name for module, name in DEPENDENCIES if not _is_present(module)]
    if missing:
        yield Finding(
            "packages",
            f"missing: {', '.join(missing)}",
            f"pip install {' '.join(missing)}",
            fatal=True,
        )
        return
    from tf_amp.commands.shared import doctor_checks

    of_tensorflow = tuple(_guarded(doctor_checks.tensorflow))
    yield from of_tensorflow
    if _is_fatal(of_tensorflow):
        return
    if not _is_fatal(found):
        found = tuple(_guarded(doctor_checks.unusable_settings))
        yield from found
    for check in doctor_checks.CHECKS:
        with settings_set_aside() if _is_fatal(found) else contextlib.nullcontext():
            findings = tuple(_guarded(check))
        yield from findings


def _is_fatal(findings: Iterable[Finding]) -> bool:
    return any(finding.fatal for finding in findings)


def _guarded(check: Callable[[], Findings]) -> Findings:
    """Turn what a check raises into a finding: the report goes on."""
    try:
        yield from check()
    except Exception as error:
        state = f"{type(error).__name__}: {error}"
        yield Finding(check.__name__.replace("_", " "), state, REINSTALL, fatal=True)


def _configuration() -> Findings:
    try:
        config = AmpConfig.from_env()
    except AmpError as error:
        yield Finding("settings", str(error), FIX_SETTING, fatal=True)
        return
    given = settings_set()
    if config.enabled:
        yield Finding("switch", f"on: {' '.join((*switches_set(), *given))}")
        return
    state = "off" if config.enabled is False else "not set"
    names = ", ".join(each.partition("=")[0] for each in given)
    yield Finding(
        "switch",
        f"{SWITCH} is {state}; =1 switches mixed precision on",
        f"export {SWITCH}=1, since {names} is set" if names else "",
    )


def _start() -> Findings:
    """Say whether the switch alone starts it in this interpreter."""
    if autostart.is_installed():
        yield Finding("autostart", f"active: {SWITCH} or {REWRITE_SWITCH} starts it")
        return
    if sys.flags.no_site:
        state, remedy = "python -S reads no .pth file", _BY_HAND
    else:
        state = f"tf_amp_autostart.pth is in no site folder of {sys.executable}"
        remedy = f"{COPY} . (without --target); or {_BY_HAND}"
    yield Finding("autostart", f"cannot start by itself: {state}", remedy, fatal=True)


def _is_present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package around it is missing.
        return False
