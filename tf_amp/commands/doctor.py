"""`tf-amp doctor`: whether 16 bits help here, whether it works, and how to fix it.

The answers come first: whether 16 bits and fusions help on each kind of device, and
why. From which wrong kernels of TensorFlow's tf-amp keeps away follows, and what is
amiss. The rest is shown where `--all` asks for it.

This module looks at what needs neither TensorFlow nor any other package, so that it
has an answer in a broken installation too; `_doctor_checks` looks at the rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from tf_amp.commands._shared import DONE, FAILED, Options
from tf_amp.config.amp_config import (
    CACHE,
    REWRITE_SWITCH,
    SWITCH,
    AmpConfig,
    settings_set,
    switches_set,
    unknown_settings,
)
from tf_amp.errors import AmpError, TensorFlowMissingError
from tf_amp.report.counts import counted
from tf_amp.runtime import autostart
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.bench.job import without_settings

SUMMARY = "say whether 16 bits help here, whether it works, and how to fix it"
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
# No index has the package: it comes from where the README says.
_COPY = "in your copy of the repository: pip install"
REINSTALL = f"{_COPY} --force-reinstall --no-deps ."
_FIX_SETTING = "correct or unset the variable"
_BY_HAND = "call tf_amp.enable() in the script, or start it with: tf-amp run SCRIPT"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at; a `remedy` means that something is amiss.

    Attributes:
      what: the thing looked at.
      state: what was found; of an answer, a sentence a line.
      remedy: the command that fixes it, empty where nothing needs fixing.
      fatal: whether mixed precision does not work without the remedy.
      kind: "answer" says whether 16 bits help on a device, "kept" is a wrong kernel of
        TensorFlow's that tf-amp keeps away from, "bug" one that stays wrong, and
        "check" is all else.
    """

    what: str
    state: str
    remedy: str = ""
    fatal: bool = False
    kind: Literal["answer", "kept", "bug", "check"] = "check"

    @property
    def mark(self) -> str:
        """The word that its line begins with; "" for an answer."""
        if self.fatal or self.remedy:
            return "FAIL" if self.fatal else "note"
        return {"answer": "", "check": "ok"}.get(self.kind, self.kind)


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    options.flag("--all", help="show what is fine and wrong kernels, too")
    options.flag("--learned", help="what steps have taught about prices")
    options.flag("--json", help="print what is found as JSON")


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if options.learned:
        from tf_amp.commands import _doctor_checks

        _doctor_checks.show_learned(as_json=options.json)
        return DONE
    return report_health(as_json=options.json, shows_all=options.all)


def report_health(*, as_json: bool = False, shows_all: bool = False) -> int:
    """Print what is found; return the exit code."""
    findings = sorted(examine(), key=lambda finding: finding.kind != "answer")
    is_healthy = not any(finding.fatal for finding in findings)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"healthy": is_healthy, "findings": rows}, indent=1))
        return DONE if is_healthy else FAILED
    answers = [finding for finding in findings if not finding.mark]
    amiss = [finding for finding in findings if finding.mark in ("FAIL", "note")]
    others = [each for each in findings if each.mark in ("ok", "kept", "bug")]
    # Not a table: a command that is wrapped cannot be copied.
    for answer in answers:
        first, *more = answer.state.splitlines()
        print(f"{answer.what}: {first}", *(f"     {each}" for each in more), sep="\n")
    if said := _said_of_kernels(findings):
        print(said)
    for finding in (*amiss, *(others if shows_all else ())):
        print(f"{finding.mark:<5}{finding.what:<16}{finding.state}")
        if finding.remedy:
            print(f"{'':<21}-> {finding.remedy}")
    state = "healthy." if is_healthy else "not healthy: see the lines marked FAIL."
    hint = "" if shows_all else " `tf-amp doctor --all` shows all that was checked."
    print(f"tf-amp is {state}{hint}")
    return DONE if is_healthy else FAILED


def _said_of_kernels(findings: Iterable[Finding]) -> str:
    """Say how many errors of kernels are known here, and which do no damage."""
    count = Counter(each.kind for each in findings)
    kept, bugs = count["kept"], count["bug"]
    said = (
        f"tf-amp protects you from {counted(kept, 'known error')} of TensorFlow's "
        "16-bit kernels on this machine: such operations stay float32."
    )
    more = (
        f"TensorFlow has {counted(bugs, 'known error')} in float32, too, with or "
        "without tf-amp; `tf-amp doctor --all` names them."
    )
    return " ".join((*[said] * bool(kept), *[more] * bool(bugs)))


def examine() -> Iterator[Finding]:
    """Yield every finding; those that need TensorFlow only where it works.

    Settings that cannot be used are one finding, and none is set for the rest of them.
    """
    config = None
    try:
        config = AmpConfig.from_env()
        yield _switch(config)
        for said in unknown_settings(os.environ).values():
            yield Finding("settings", said, _FIX_SETTING)
    except AmpError as error:
        yield Finding("settings", str(error), _FIX_SETTING, fatal=True)
    yield _start()
    missing = [name for module, name in DEPENDENCIES if not _is_present(module)]
    if missing:
        advice = f"pip install {' '.join(missing)}"
        yield Finding("packages", f"missing: {', '.join(missing)}", advice, fatal=True)
        return
    try:
        check_tensorflow()
    except TensorFlowMissingError as error:
        yield Finding("TensorFlow", error.state, error.remedy, fatal=True)
        return
    from tf_amp.commands import _doctor_checks as checks
    from tf_amp.rewriting.graph_settings import check_config

    yield checks.versions()
    try:
        if config is not None:
            check_config(config)
    except AmpError as error:
        yield Finding("settings", str(error), _FIX_SETTING, fatal=True)
        config = None
    if config is None:
        # As if nothing were set; the cache stays where it is.
        cache = {CACHE: os.environ[CACHE]} if CACHE in os.environ else {}
        config = AmpConfig.from_env({**without_settings(os.environ), **cache})
    for check in checks.CHECKS:
        try:
            yield from check(config)
        except Exception as error:
            # The report goes on.
            what, state = check.__name__, f"{type(error).__name__}: {error}"
            yield Finding(what.replace("_", " "), state, REINSTALL, fatal=True)


def _switch(config: AmpConfig) -> Finding:
    assignments = settings_set()
    if config.enabled:
        return Finding("variable", f"on: {' '.join((*switches_set(), *assignments))}")
    state = "off" if config.enabled is False else "not set"
    names = ", ".join(each.partition("=")[0] for each in assignments)
    verb = "is" if len(assignments) == 1 else "are"
    return Finding(
        "variable",
        f"{SWITCH} is {state}; =1 switches mixed precision on",
        f"export {SWITCH}=1, since {names} {verb} set" if names else "",
    )


def _start() -> Finding:
    """Say whether the switch alone starts it in this interpreter."""
    if autostart.is_installed():
        return Finding("autostart", f"active: {SWITCH} or {REWRITE_SWITCH} starts it")
    if sys.flags.no_site:
        state, remedy = "python -S reads no .pth file", _BY_HAND
    else:
        state = f"tf_amp_autostart.pth is in no site folder of {sys.executable}"
        remedy = f"{_COPY} . (without --target); or {_BY_HAND}"
    return Finding("autostart", f"cannot start by itself: {state}", remedy, fatal=True)


def _is_present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package around it is missing.
        return False
