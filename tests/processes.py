"""Run Python in fresh processes, as plug-ins of TensorFlow must be tested."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Settings of whoever runs the tests must not reach what is tested.
_OWN_PREFIXES = ("TF_AMP_", "TF_ENABLE_AUTO_MIXED", "TF_AUTO_MIXED", "PYTHON")

# Keras imports them where they are installed, for what is not tested here; that takes
# a third of the time in which TensorFlow is imported.
_NOT_NEEDED = ("matplotlib", "pandas", "sklearn")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a process left behind."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        """Return what was printed, after checking that the process ended well."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self.out.splitlines()


@functools.cache
def settings() -> dict[str, str]:
    """Return settings by which plans are the same in every run.

    What was measured on this machine, or is measured meanwhile, does not count. The
    folder for it is removed at the end of this process. What is said once on a machine
    has been said.
    """
    cache = tempfile.mkdtemp(prefix="tf-amp-cache-")
    pathlib.Path(cache, "verbose_hint_given").touch()
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    return {"TF_AMP_TUNE": "off", "TF_AMP_CACHE": cache}


def run_python(
    code: str,
    *,
    python: pathlib.Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
    options: Sequence[str] = (),
) -> Outcome:
    """Run code with an interpreter: this one, which then sees the source folder.

    It does not see what Keras would import and no test needs.
    """
    ours = sources() if python is None else {}
    return run(
        [str(python or sys.executable), *options, "-c", textwrap.dedent(code)],
        env={**ours, **(env or {})},
        cwd=cwd,
    )


def sources() -> dict[str, str]:
    """Return what lets interpreters see the source folder, less what is hidden."""
    return {"PYTHONPATH": os.pathsep.join([str(folder_that_hides()), str(ROOT)])}


def hide_in(folder: pathlib.Path) -> None:
    """Let a folder hide from Keras what it would import and no test needs."""
    for name in _NOT_NEEDED:
        (folder / f"{name}.py").write_text("raise ImportError")


@functools.cache
def folder_that_hides() -> pathlib.Path:
    """Return a folder for PYTHONPATH, see `hide_in`."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tf-amp-hides-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    hide_in(folder)
    return folder


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process in a test."""
    inherited = without_settings(os.environ)
    return {**inherited, **settings(), "TF_CPP_MIN_LOG_LEVEL": "2", **given}


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what may not reach what is tested."""
    return {k: v for k, v in environ.items() if not k.startswith(_OWN_PREFIXES)}


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
    given: str = "",
) -> Outcome:
    """Run a command without the settings of the one who runs the tests.

    `given` is its standard input.
    """
    with started(command, env=env, cwd=cwd) as process:
        out, err = process.communicate(given, timeout=300)
    return Outcome(process.returncode, out, err)


@contextlib.contextmanager
def started(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Start a command, without those settings as well, that is killed in the end."""
    with start(command, env=env, cwd=cwd) as process:
        try:
            yield process
        finally:
            process.kill()


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> subprocess.Popen[str]:
    """Start a command, without those settings as well."""
    return subprocess.Popen(
        list(map(str, command)),
        env=environment(env or {}),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
