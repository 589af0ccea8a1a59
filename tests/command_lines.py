"""Lines of a shell with `tf-amp` or `python`, run in children of a process."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Mapping

from tests.forking import run_forked_command
from tests.processes import Outcome

# Lets `tf-amp bench` fork off what it measures, rather than start Python anew. What a
# sample is made of is the same; that processes are started, ended and survived is shown
# by `tests/tf_amp/commands/test_bench_command.py`.
FORKING = """
import os, sys, tempfile, time, traceback
from tf_amp.tools.bench import record
from tf_amp.tools.bench.journal import Ended
from tf_amp.tools.bench import worker

def run_worker(task, environment, seconds, stop):
    begin = time.monotonic()
    errors = tempfile.TemporaryFile("w+")
    child = os.fork()
    if not child:
        status = 1
        try:
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["-c", task]
            worker.main()
            status = 0
        except BaseException:
            traceback.print_exc(file=errors)
            errors.flush()
        os._exit(status)
    _, status, usage = os.wait4(child, 0)
    errors.seek(0)
    return Ended(
        status=os.waitstatus_to_exitcode(status),
        is_out_of_time=False,
        errors=errors.read(),
        peak_bytes=usage.ru_maxrss * 1024,
        begin=begin,
    )

record._run_worker = run_worker
"""


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
