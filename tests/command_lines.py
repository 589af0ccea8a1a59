"""Lines of a shell with `tf-amp` or `python`, run in children of a process."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Mapping

from tests.forked_samples import FORKING
from tests.forking import run_forked_command
from tests.processes import Outcome


def run_line(
    line: str, folder: pathlib.Path, *, env: Mapping[str, str] | None = None
) -> Outcome:
    """Run a line such as `TF_AMP_DTYPE=float16 tf-amp explain model` in a folder.

    What stands in front of the command goes before the variables in `env`.
    """
    words = shlex.split(line)
    given = dict(env or {})
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    if words[0] == "python":
        return run_forked_command(words[1:], env=given, cwd=folder)
    command = ["-m", "tf_amp", *words[1:]]
    before = FORKING if "bench" in words[1:2] else ""
    return run_forked_command(command, before=before, env=given, cwd=folder)
