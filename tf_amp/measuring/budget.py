"""How much time may go into finding out what is faster.

By default a tenth of the time that the process has run when a graph arrives, most of
which TensorFlow has taken to start; 3 seconds per graph and 20 per process at most. At
other shapes a graph is another one. A graph for which an earlier process has measured,
whether it was of use or not, gets nothing more: the second run of a job starts at once,
and with the same prices. What went into waiting for other processes does not count.
Decides neither what the time is used for nor whether that is worth it: see the tuner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.fork_safety import renewed_lock

if TYPE_CHECKING:
    from tf_amp.measuring.known_costs import GraphLedger

# Graphs whose allowance is remembered: the same one comes several times in a row.
_GRAPHS_KEPT = 256
# Where there is no limit: a time that can be waited for.
_LONGEST_SECONDS = 86400.0
# Of /proc/self/stat, behind the name of the program: see proc(5), starttime.
_START_FIELD = 19


class Limits(NamedTuple):
    """What may be spent, in seconds.

    Attributes:
      per_graph: on the prices of one graph, in all processes together.
      per_process: on all graphs together.
      share: of the time since the process was started, on all graphs together.
    """

    per_graph: float = math.inf
    per_process: float = math.inf
    share: float = math.inf


DEFAULT = Limits(per_graph=3.0, per_process=20.0, share=0.1)


def limits_of(tune: str) -> Limits | None:
    """Return the limits that a checked `TF_AMP_TUNE` stands for; None for "off"."""
    word, _, seconds = tune.partition(":")
    if word == "off":
        return None
    if word == "full":
        return Limits()
    return Limits(per_process=float(seconds)) if seconds else DEFAULT


def process_age() -> float:
    """Return the seconds that this process has run; 0.0 where that is not known."""
    try:
        fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
    except (OSError, AttributeError, ValueError):
        return 0.0


class Budget:
    """The time of one process; several threads may spend it at once."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        age: float = 0.0,
    ) -> None:
        """Begin with nothing spent.

        Args:
          limits: what may be spent.
          clock: returns seconds, from any origin.
          age: seconds that the process has run.
        """
        self.limits = limits
        self._clock = clock
        self._start = clock() - age
        self._lock = renewed_lock()
        self._spent = 0.0
        self._graphs: OrderedDict[Hashable, float] = OrderedDict()
        # Of those seconds, the ones that other processes have taken.
        self._waited: dict[Hashable, float] = {}

    @property
    def spent(self) -> float:
        """Seconds spent so far, on all graphs."""
        return self._spent

    def allowance(
        self,
        graph: Hashable | Callable[[], Hashable],
        ledger: GraphLedger | None = None,
    ) -> Allowance:
        """Return what one graph may use; equal graphs share theirs.

        Args:
          graph: compares equal where the time is shared; a function is asked for it
            once it matters.
          ledger: asked once it matters; None: earlier processes do not count.
        """
        return Allowance(self, graph, ledger)

    def open(self, graph: Hashable, spent: Callable[[], float]) -> None:
        """Leave nothing to a graph that earlier processes spent time on.

        They are asked the first time that it is named.
        """
        if graph not in self._graphs:
            seconds = spent()
            if seconds > 0.0 and self.limits.per_graph < math.inf:
                seconds = max(seconds, self.limits.per_graph)
            with self._lock:
                self._graphs.setdefault(graph, seconds)

    def spent_on(self, graph: Hashable) -> float:
        """Return what a graph has taken, earlier processes included, waits left out."""
        with self._lock:
            return self._graphs.get(graph, 0.0) - self._waited.get(graph, 0.0)

    def remaining(self, graph: Hashable) -> float:
        """Return the seconds that are left for a graph: 0.0 or more, a day at most."""
        limits = self.limits
        elapsed = self._clock() - self._start
        with self._lock:
            left = [
                _LONGEST_SECONDS,
                limits.per_graph - self._graphs.get(graph, 0.0),
                limits.per_process - self._spent,
            ]
            if limits.share < math.inf:
                left.append(limits.share * elapsed - self._spent)
        return max(min(left), 0.0)

    @contextlib.contextmanager
    def spending(self, graph: Hashable, *, is_wait: bool = False) -> Iterator[None]:
        """Count the time that the block takes, however it ends."""
        begin = self._clock()
        try:
            yield
        finally:
            self._spend(graph, self._clock() - begin, is_wait=is_wait)

    def _spend(self, graph: Hashable, seconds: float, *, is_wait: bool = False) -> None:
        with self._lock:
            self._spent += seconds
            self._graphs[graph] = self._graphs.get(graph, 0.0) + seconds
            self._graphs.move_to_end(graph)
            if is_wait:
                self._waited[graph] = self._waited.get(graph, 0.0) + seconds
            if len(self._graphs) > _GRAPHS_KEPT:
                oldest, _ = self._graphs.popitem(last=False)
                self._waited.pop(oldest, None)


@dataclasses.dataclass(frozen=True)
class Allowance:
    """What one graph may use of a budget."""

    budget: Budget
    graph: Hashable | Callable[[], Hashable]
    ledger: GraphLedger | None = None

    @cached_attribute
    def _key(self) -> Hashable:
        return self.graph() if callable(self.graph) else self.graph

    def remaining(self) -> float:
        """Return the seconds that are left: 0.0 or more, a day at most."""
        if self.ledger is not None:
            self.budget.open(self._key, self.ledger.spent)
        return self.budget.remaining(self._key)

    def spent(self) -> float:
        """Return what the graph has taken, earlier processes included, waits not."""
        return self.budget.spent_on(self._key)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit for one graph, in all processes together."""
        return self.budget.limits.per_graph < math.inf

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time that a block takes."""
        with self.budget.spending(self._key):
            yield

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time that a block waits for other processes."""
        with self.budget.spending(self._key, is_wait=True):
            yield

    def keep(self) -> None:
        """Let later processes count what the graph has taken, in vain or not.

        What it has waited is not counted against them: they may wait less.
        """
        if self.ledger is not None:
            self.ledger.keep(self.spent())
