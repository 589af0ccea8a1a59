"""Compare two graphs as a whole, or where that takes too long, by their dearest parts.

The parts are those with the largest predicted gain. They speak against the whole graph
as soon as they are not faster together: a plan that does not keep its best promises is
not trusted with the others. They speak for it only if they stand for enough of the
gain.
"""

from __future__ import annotations

import dataclasses
import math
import time

from grappler_pass.draft import Trial
from tf_amp.tuning.parts import parts_of
from tf_amp.tuning.sandbox import NotRunnable
from tf_amp.tuning.trial import (
    LEAST_GAIN,
    LONGEST_SECONDS,
    Comparison,
    TooLong,
    compare,
)

# Parts are this much shorter than the time there is: first steps and pairs have to fit.
_SHARE_OF_STEP = 1 / 32
_PARTS = 3
# Parts speak for the whole if they make up so much of the predicted gain.
_LEAST_COVERED = 0.25


@dataclasses.dataclass(frozen=True)
class Judgment:
    """What trials have shown of a graph.

    Attributes:
      comparison: of the graph, or of its parts together.
      covered: share of the predicted gain that was put to the test.
    """

    comparison: Comparison
    covered: float = 1.0

    @property
    def is_faster(self) -> bool | None:
        """Whether the rewritten graph is; None where it stays open."""
        faster = self.comparison.is_faster
        return None if faster and self.covered < _LEAST_COVERED else faster

    def leans_faster(self, *, is_sure: bool) -> bool:
        """Tell what the rewritten graph is taken for where it stays open.

        The promise is not to be slower: to lean there is to be it.

        Args:
          is_sure: whether prices promise a gain beyond doubt; if they do not, what was
            measured has to be larger than its own error.
        """
        measured = self.comparison
        if is_sure:
            return measured.ratio > 1.0
        doubt = max(measured.error, LEAST_GAIN)
        return self.covered >= _LEAST_COVERED and math.log(measured.ratio) > doubt

    def __str__(self) -> str:
        """Return one line for the log."""
        if self.covered == 1.0:
            return str(self.comparison)
        return f"{self.comparison} in parts, {self.covered:.0%} of the gain"


def judge(trial: Trial, seconds: float) -> Judgment:
    """Run a graph before and after its rewrite, or parts of it.

    Args:
      trial: what to run.
      seconds: how long this may take; parts are cut for what a trial takes at most.

    Raises:
      NotRunnable: neither can be run, or not in time.
    """
    seconds = min(seconds, LONGEST_SECONDS)
    try:
        return Judgment(compare(trial, seconds))
    except TooLong as error:
        if not trial.nodes:
            raise
        return _judge_parts(trial, seconds, error)


def _judge_parts(trial: Trial, seconds: float, reason: TooLong) -> Judgment:
    end = time.perf_counter() + seconds
    compared: list[tuple[float, Comparison]] = []
    gain = 0.0
    for part in parts_of(trial, seconds * _SHARE_OF_STEP):
        left = end - time.perf_counter()
        try:
            found = compare(part.trial, left / (_PARTS - len(compared)))
        except TooLong:
            break
        except NotRunnable:
            continue
        compared.append((part.runs, found))
        gain += part.gain
        if len(compared) == _PARTS:
            break
    if not compared:
        raise reason
    whole = trial.seconds_before - trial.seconds_after
    return Judgment(_together(compared), min(gain / whole, 1.0) if whole > 0 else 0.0)


def _together(compared: list[tuple[float, Comparison]]) -> Comparison:
    """Return the times of all parts, as if each pair had run one after the other.

    Args:
      compared: parts, and how often a step runs each.
    """
    weighted = (
        [(runs * before, runs * after) for before, after in comparison.pairs]
        for runs, comparison in compared
    )
    rows = zip(*weighted, strict=False)
    return Comparison(
        tuple((sum(b for b, _ in row), sum(a for _, a in row)) for row in rows)
    )
