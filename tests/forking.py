"""Run programs in children of one process that has imported modules, and no more.

A child is as a fresh process is once it has imported TensorFlow and what there is of
this package, which takes most of a small program's time; nothing of either has run. It
ends after what was registered with `atexit`: to clear all of TensorFlow's modules takes
longer than most programs. What is about imports, about the start or the end of an
interpreter, or about what TensorFlow reads from the environment, needs a process of its
own: `run_python`.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import importlib
import io
import json
import os
import pathlib
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import types
from collections.abc import Mapping, Sequence
from typing import Any

from tests.processes import ROOT, Outcome, environment, sources

_TIMEOUT_SECONDS = 300
# What TensorFlow and Python read from the environment as they start.
_EARLY = re.compile(
    "(?!TF_AMP|TF_CONFIG|TF_(ENABLE_)?AUTO_MIXED|TF_NUM_INTRAOP)(TF|CUDA|XLA|PYTHON|OMP)"
)

# What starts the package, is a program, or no module.
_ACTIVE = re.compile(r".*\.(__main__|_?autostart\w*|_shim_\w*|_kept_weights)$")


def run_forked(
    code: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path = ROOT,
) -> Outcome:
    """Run code, with what is ours in the environment as given."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        child = Child(code, env or {}, out, err, cwd)
        return Outcome(child.wait(), out.read_text(), err.read_text())


def run_tuned(code: str, cache: pathlib.Path, **env: str) -> list[str]:
    """Return what a program prints whose steps are compared, under strict settings."""
    given = {"TF_AMP_CACHE": str(cache), "TF_AMP_STRICT": "1"}
    done = run_forked(code, env={"TF_AMP_TUNE": "on", **given, **env})
    assert "Traceback" not in done.err, done.err
    return done.lines()


class Child:
    """A program in a process of its own, under way."""

    def __init__(
        self,
        code: str,
        env: Mapping[str, str],
        out: pathlib.Path,
        err: pathlib.Path,
        cwd: pathlib.Path = ROOT,
    ) -> None:
        """Start it.

        Args:
          code: of the program.
          env: further variables that nothing reads as it starts.
          out: file for what it prints.
          err: file for its errors.
          cwd: folder to run in.
        """
        assert not any(map(_EARLY.match, env)), env
        asked = {
            "code": textwrap.dedent(code),
            "env": dict(env),
            "cwd": str(cwd),
            "out": str(out),
            "err": str(err),
        }
        for path in (out, err):
            path.touch()
        self.pid: int = _answer(asked)
        self._status: int | None = None

    def wait(self) -> int:
        """Return the exit status once it has ended."""
        if self._status is None:
            self._status = _answer({"wait": self.pid})
        return self._status

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        if self._status is None:
            self._status = _answer({"poll": self.pid})
        return self._status

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def run_forked_command(
    arguments: Sequence[str],
    *,
    before: str = "",
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path = ROOT,
) -> Outcome:
    """Run what `python ARGUMENTS` does: a script, or with `-m` a module.

    `before` is code that runs first.
    """
    code = f"{before}\nimport runpy, sys; sys.argv = {list(map(str, arguments))!r}\n"
    if arguments[0] == "-m":
        code += f"del sys.argv[0]; sys.path[0] = {str(cwd)!r}\n"
        code += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    else:
        code += f"sys.path[0] = {str((cwd / arguments[0]).parent)!r}\n"
        code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return run_forked(code, env=env, cwd=cwd)


def _answer(question: Mapping[str, object]) -> Any:
    server = _server()
    print(json.dumps(question), file=server.stdin, flush=True)
    return json.loads(server.stdout.readline())


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process that forks, once per process of the tests."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forking", sources()["PYTHONPATH"]],
        env=environment({"PYTHONPATH": str(ROOT)}),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    server.kill()
    server.wait()


def _serve() -> None:
    """Fork for each line of standard input; answer how the child ended."""
    # The first to be registered runs last, in each child.
    atexit.register(_leave)
    gc.disable()
    import tensorflow  # noqa: F401 - so that the children need not

    _import_all("grappler_pass", "tf_amp", "keras_callbacks")
    gc.enable()
    # What children start need not import what no test needs.
    os.environ["PYTHONPATH"] = sys.argv[1]
    # What was imported is nothing that a child's garbage collector need look at.
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        if "code" in asked:
            answer = os.fork()
            if not answer:
                return _run(asked)
        else:
            answer = _status(asked)
        print(json.dumps(answer), file=answers, flush=True)


def _import_all(*packages: str) -> None:
    """Import the modules of packages, but what does something once it is imported."""
    for package in map(importlib.import_module, packages):
        prefix = f"{package.__name__}."
        for found in pkgutil.walk_packages(package.__path__, prefix):
            if not _ACTIVE.match(found.name):
                importlib.import_module(found.name)


def _status(asked: Mapping[str, int]) -> int | None:
    """Return how a child has ended; None where it is only looked at, and runs."""
    ((how, child),) = asked.items()
    ended, status = os.waitpid(child, os.WNOHANG if how == "poll" else 0)
    return os.waitstatus_to_exitcode(status) if ended == child else None


def _run(asked: Mapping[str, Any]) -> None:
    """Be the program, with its own standard streams."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), number)
    faulthandler.dump_traceback_later(_TIMEOUT_SECONDS, exit=True)
    sys.stdin = io.StringIO()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    # As of `python -c`.
    sys.argv = ["-c"]
    try:
        exec(
            compile(asked["code"], "<string>", "exec", dont_inherit=True), vars(module)
        )
        _ended["status"] = 0
    except SystemExit as ended:
        code = ended.code
        _ended["status"] = code if isinstance(code, int) else bool(code)
        raise


_ended = {"status": 1}


def _leave() -> None:
    """End this process as it is."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_ended["status"])


if __name__ == "__main__":
    _serve()
