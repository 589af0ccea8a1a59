"""Processes that build a step and then time it as told, each in its turn.

Such a process prints a line once its first steps are done. Then each line of standard
input is a number of seconds, for which it runs steps; it prints the seconds that one
of them took.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from benchmarks.processes import ROOT
from tf_amp.tools.bench.journal import Ended

_LONGEST_ROUND_SECONDS = 60.0
_FEWEST_STEPS = 3
_SET_SIGNAL_OF_PARENTS_DEATH = 1


class LivingProcess:
    """One that is asked; once it has ended it answers nothing.

    Attributes:
      seconds: of a step, of each turn that was kept.
    """

    def __init__(
        self, module: str, words: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start a module under ``benchmarks``; it begins with its first steps."""
        self.seconds: list[float] = []
        self._late = ""
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *words],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def first_line(self, longest: float) -> str:
        """Wait so many seconds for its first steps; return its line about them."""
        return self._answer("", longest)

    def run_steps(self, seconds: float, *, is_kept: bool) -> None:
        """Have it run steps for a while, and keep what one of them took."""
        line = self._answer(f"{seconds}\n", _LONGEST_ROUND_SECONDS)
        if line and is_kept:
            self.seconds.append(float(line))

    def errors(self) -> str:
        """Return what it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def failure(self) -> str:
        """Return how it ended if it did; "" otherwise."""
        if self._late or self._process.poll() is None:
            return self._late
        status = self._process.returncode
        ended = Ended(status, False, self.errors(), peak_bytes=0, begin=math.nan)
        return ended.failure or "it ended without an answer"

    def end(self) -> None:
        """End it, and wait until its memory is free."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self, question: str, longest: float) -> str:
        """Return the next line that it prints; "" if none comes in so many seconds."""

        def give_up() -> None:
            self._late = f"no answer in {longest:.0f} s"
            self._process.kill()

        timer = threading.Timer(max(longest, 0.0), give_up)
        timer.start()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(question)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self._process.wait()
        return line


def take_turns(
    processes: Sequence[LivingProcess], *, rounds: int, seconds: float
) -> None:
    """Time each process once in every round, forth and back.

    The first round is not kept: it shows how many steps fill the time.
    """
    for number in range(rounds + 1):
        for process in processes[:: 1 if number % 2 else -1]:
            process.run_steps(seconds, is_kept=number > 0)


def only_answers() -> TextIO:
    """Return where this process answers; what anything else prints is no answer.

    Whatever ends the one that waits for this process ends it, too.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL)
    return answers


def time_as_told(
    step: Callable[[], object], wait: Callable[[], object], answers: TextIO
) -> None:
    """Run steps as long as each line says, wait for them, and answer."""
    step_seconds = math.inf
    for line in sys.stdin:
        count = max(_FEWEST_STEPS, int(float(line) / step_seconds))
        begin = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        step_seconds = (time.perf_counter() - begin) / count
        print(step_seconds, file=answers, flush=True)
