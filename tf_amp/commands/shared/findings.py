"""What the doctor finds, a line each, and how settings are left out meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from tf_amp.config.amp_config import CACHE, OWN_PREFIX, SWITCH_PREFIX, TUNE
from tf_amp.config.setting_values import LIST_PREFIX

# No index has the package: it comes from where the README says.
COPY = "in your copy of the repository: pip install"
REINSTALL = f"{COPY} --force-reinstall --no-deps ."
FIX_SETTING = "correct or unset the variable"
_PREFIXES = (OWN_PREFIX, SWITCH_PREFIX, LIST_PREFIX)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report; a `remedy` means that something is amiss.

    Attributes:
      what: the thing looked at.
      state: what was found.
      remedy: the command that fixes it, empty where nothing needs fixing.
      fatal: whether mixed precision does not work without the remedy.
    """

    what: str
    state: str
    remedy: str = ""
    fatal: bool = False


Findings = Iterator[Finding]


def show(finding: Finding) -> None:
    """Print a line, and another one for the remedy."""
    mark = "FAIL" if finding.fatal else "note" if finding.remedy else "ok"
    # Not a table: a command that is wrapped cannot be copied.
    print(f"{mark:<5}{finding.what:<16}{finding.state}", flush=True)
    if finding.remedy:
        print(f"{'':<21}-> {finding.remedy}", flush=True)


@contextlib.contextmanager
def settings_set_aside() -> Iterator[None]:
    """Let this process be as if nothing were set, for a while.

    No steps are compared meanwhile, and the cache stays where it is. Not for programs
    with threads that read the environment.
    """
    names = [n for n in os.environ if n.startswith(_PREFIXES) and n != CACHE]
    aside = {name: os.environ.pop(name) for name in names}
    os.environ[TUNE] = "off"
    try:
        yield
    finally:
        del os.environ[TUNE]
        os.environ.update(aside)
