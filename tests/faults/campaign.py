"""Plant faults one by one, run tests, and write down which of them fail."""

from __future__ import annotations

import datetime
import pathlib
import queue
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.faults import table
from tests.faults.fault import Fault
from tests.faults.table import Row
from tests.faults.tree_copy import TreeCopy

_FAST_TESTS = ("tests", "-m", "not slow")
_FIRST_SECONDS, _FAST_SECONDS = 900.0, 3600.0


def sought(fault: Fault, copy: TreeCopy, *, first_only: bool) -> Row:
    """Return which tests find a fault.

    What fails without the fault as well finds nothing.

    Args:
      fault: to be planted.
      copy: of the sources, without any fault.
      first_only: whether only the fault's own tests are asked; otherwise all that are
        not slow are, if none of its own finds it.

    Raises:
      ImportError: the tests cannot be run.
    """
    failed, asked = _failing(fault, copy, fault.tests, _FIRST_SECONDS), "first tests"
    if not (failed or first_only):
        failed, asked = _failing(fault, copy, _FAST_TESTS, _FAST_SECONDS), "fast tests"
    today = datetime.date.today().isoformat()
    return Row.of(failed, asked=asked, date=today)


def _failing(
    fault: Fault, copy: TreeCopy, tests: Sequence[str], seconds: float
) -> list[str]:
    """Return the tests that fail with the fault only."""
    with copy.planted(fault):
        failed = copy.failing(tests, seconds=seconds)
    if unknown := [test for test in failed if test not in copy.passing]:
        without = {*copy.failing(unknown, seconds=seconds)}
        copy.passing.update(test for test in unknown if test not in without)
    for test in failed:
        if test not in copy.passing:
            print(f"fails without the fault, too: {test}", flush=True)
    return [test for test in failed if test in copy.passing]


class Campaign:
    """Faults to be sought, some at a time, each time in a copy of the sources."""

    def __init__(self, faults: Sequence[Fault], *, first_only: bool) -> None:
        """Take the faults to be sought; `first_only` as in `sought`."""
        self._faults = faults
        self._first_only = first_only
        self._copies: queue.Queue[TreeCopy] = queue.Queue()
        self._lock = threading.Lock()

    def run(self, processes: int) -> bool:
        """Seek the faults; tell whether tests found all of them."""
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            for number in range(min(processes, len(self._faults))):
                copy = TreeCopy(pathlib.Path(folder, str(number)).resolve())
                copy.check_imports()
                self._copies.put(copy)
            with ThreadPoolExecutor(processes) as pool:
                return all(list(pool.map(self._seek, self._faults)))

    def _seek(self, fault: Fault) -> bool:
        copy = self._copies.get()
        try:
            row = sought(fault, copy, first_only=self._first_only)
        except ImportError as error:
            print(f"{fault.sentence}\n  {error}", flush=True)
            return False
        finally:
            self._copies.put(copy)
        print(f"{fault.sentence}\n  {row}", flush=True)
        with self._lock:
            table.write({**table.read(), fault.sentence: row})
        return row.count > 0
