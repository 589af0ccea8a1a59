"""A copy of the sources, in which faults are planted and tests run."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from tests.faults.failed_tests import REPORT, failed_in
from tests.faults.fault import Fault
from tests.faults.imported import DONE
from tests.processes import ROOT

_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")


class TreeCopy:
    """A temporary folder with the sources; what is compiled is copied, too.

    Attributes:
      folder: the root of the copy.
      passing: tests that are known to pass in it without any fault.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Copy the sources to a folder that is not there yet."""
        self.folder = folder
        self.passing: set[str] = set()
        shutil.copytree(ROOT, folder, ignore=_LEFT_OUT)

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plant a fault for as long as the context lasts."""
        path = self.folder / fault.path
        sound = path.read_text()
        self._write(path, fault.planted_in(sound))
        try:
            yield
        finally:
            self._write(path, sound)

    def _write(self, path: pathlib.Path, source: str) -> None:
        """Write a file, and forget what was compiled of it within the same second."""
        path.write_text(source)
        pathlib.Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)

    def failing(self, tests: Sequence[str], *, seconds: float) -> list[str]:
        """Return those of the tests that fail; one under way when time is up fails.

        Args:
          tests: words of pytest's command line.
          seconds: after which the tests are ended.

        Raises:
          ImportError: a file of tests could not be collected, or none was.
        """
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder, "report")
            report.touch()
            command = ["pytest", "-q", "-p", "tests.faults.failed_tests", *tests]
            out = self.run(command, seconds=seconds, env={REPORT: str(report)})
            told = report.read_text()
        failed = failed_in(told)
        if failed is None:
            raise ImportError(f"the tests are not collected:\n{out[-2000:]}")
        return failed

    def run(self, module: Sequence[str], *, seconds: float, env: dict[str, str]) -> str:
        """Run a module in the copy; return what it printed until its time is up."""
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            return "its time was up"
        finally:
            # Its children are ended, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def check_imports(self) -> None:
        """Check that tests here, and processes they start, import what is here.

        Raises:
          ImportError: one does not.
        """
        printed = self.run(["tests.faults.imported"], seconds=300, env={})
        places = [line for line in printed.splitlines() if line.startswith("imported ")]
        here = [place for place in places if f" {self.folder}{os.sep}" in place]
        if DONE not in printed or here != places:
            raise ImportError(f"{self.folder} is not what is imported:\n{printed}")
