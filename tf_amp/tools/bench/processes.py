"""Run one process to its end or that of its time, whatever it prints or forks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[3]
# The folder it is started in, which comes first, may hold modules with names of ours.
_START = (
    f"import sys; sys.path[0] = {os.devnull!r}; sys.path.append({str(_ROOT)!r}); "
    "from tf_amp.tools.bench.worker import process; process.main()"
)
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_KEPT_BYTES = 65536
_TRACEBACK = "Traceback (most recent call last):"
# Of Python, where an exception was caught by nobody.
_EXCEPTION_STATUS = 1
# Characters of what is said in a line, and of each of two parts.
_LONGEST, _PART = 200, 95


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Its status is the exit code, or minus the number of the signal that ended it; errors
    are the end of what it wrote to stderr. Of the machine are the most memory that it
    held at once, and the seconds of the clock when it was started.
    """

    status: int
    is_out_of_time: bool
    errors: str
    peak_bytes: int
    begin: float

    @property
    def failure(self) -> str:
        """Why it failed, in one line; "" if it did not."""
        if self.is_out_of_time or not self.status:
            return ""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        last = lines[-1].strip() if lines else ""
        if self.status < 0:
            return _said(f"ended by {signal.Signals(-self.status).name}", last)
        error = _error_line(lines) if self.status == _EXCEPTION_STATUS else ""
        said = last if error in ("", last) else f"{error[:_PART]} ... {last[:_PART]}"
        return _said(f"exit status {self.status}", said)


def _said(how: str, what: str) -> str:
    what = what[:_LONGEST].rstrip(".")
    return f"{how}: {what}" if what else how


def _error_line(lines: Sequence[str]) -> str:
    """Return the first line of the last exception, which has its type; "" without one.

    The frames between are indented, whatever follows in the message need not be.
    """
    begins = [n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    after = lines[begins[-1] + 1 :] if begins else ()
    return next((line.strip() for line in after if not line[0].isspace()), "")


def run_worker(
    task: str, environment: Mapping[str, str], seconds: float, stop: threading.Event
) -> Ended:
    """Run a worker, and end it with all it has started once its time is over.

    It is in a session of its own, so that Ctrl-C reaches it by way of this process,
    where it sets `stop`: KeyboardInterrupt, and no process is left. It is given the
    task as JSON and all its variables; what it prints is dropped.
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, task],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status, usage, is_over = _waited(process, begin + seconds, stop)
        finally:
            # What is left of it, and of those that it has started.
            _signal_group(process, signal.SIGKILL)
            if process.returncode is None:
                process.wait()
        errors.seek(max(errors.seek(0, os.SEEK_END) - _KEPT_BYTES, 0))
        tail = errors.read().decode(errors="replace")
    return Ended(
        status=status,
        is_out_of_time=is_over,
        errors=tail,
        peak_bytes=usage.ru_maxrss * 1024,
        begin=begin,
    )


def _waited(
    process: subprocess.Popen[bytes], until: float, stop: threading.Event
) -> tuple[int, resource.struct_rusage, bool]:
    """Wait for a process; ask it to end when its time is over, then make it."""
    is_over = False
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage, is_over
        if stop.is_set():
            raise KeyboardInterrupt
        if time.monotonic() > until:
            _signal_group(process, signal.SIGKILL if is_over else signal.SIGTERM)
            is_over, until = True, time.monotonic() + _GRACE_SECONDS
        time.sleep(_POLL_SECONDS)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
