"""A remembered verdict is looked at again, by a few calls and no more."""

from __future__ import annotations

import pathlib
import time

import pytest

from grappler_pass.costs.database.records import Verdict
from tests.tf_amp.measuring.steps.test_step_comparison import run
from tf_amp.measuring.steps.step_comparison import MIXED
from tf_amp.measuring.steps.verdict_check import VerdictCheck, contradicts

GRAPH = "a CPU", "2.21.0", "fingerprint"
FASTER = Verdict(*GRAPH, True, seconds_before=2.0, seconds_after=1.0, when=0.0)
SLOWER = Verdict(*GRAPH, False, seconds_before=2.0, seconds_after=2.1, when=0.0)


@pytest.mark.parametrize(
    ("verdict", "seconds", "expected"),
    [
        (FASTER, [1.0] * 16, False),
        # Slower than it was, but not than float32.
        (FASTER, [1.9] * 16, False),
        (FASTER, [2.2] * 16, False),
        (FASTER, [2.5] * 16, True),
        (FASTER, [1.0] * 13 + [50.0] * 3, False),
        (FASTER, [1.0, 2.0, 4.0, 8.0] * 4, False),
        (SLOWER, [2.2] * 16, False),
        (SLOWER, [2.6] * 16, True),
    ],
)
def test_steps_contradict_a_verdict_beyond_the_noise(
    verdict: Verdict, seconds: list[float], expected: bool
) -> None:
    assert contradicts(seconds, verdict) is expected


@pytest.mark.parametrize(("now", "expected"), [(0.001, []), (0.02, ["contradicted"])])
def test_calls_are_timed_until_the_twentieth(now: float, expected: list[str]) -> None:
    found: list[str] = []
    check = VerdictCheck(
        Verdict(*GRAPH, True, 0.01, 0.005, 0.0), lambda: found.append("contradicted")
    )
    for _ in range(18):
        assert check.run(lambda label: time.sleep(now) or label) == MIXED
    assert not check.is_over and not found
    check.run(lambda label: time.sleep(now))
    assert check.is_over and found == expected
    check.run(lambda label: time.sleep(now))
    assert found == expected


# What is slow, by label of the instance; in the second process it is the other one.
CHANGED = """
now = {now}

def by_label(data, item):
    global slow, seconds
    label = compared_calls._thread.label
    slow = "float32" if label == "float32" else ""
    seconds = now.get(label, 0.0)
    return slowing(data, item)

rewriter.rewrite_graph = by_label
tf_amp.enable(dtype="bfloat16")
labels = labels_of({calls})
while len(set(labels[-6:])) > 1:
    labels += labels_of(1)
changed = [i + 1 for i in range(1, len(labels)) if labels[i] != labels[i - 1]]
print(changed[:1], labels[-1:], len(tf_amp.plans()))
"""


@pytest.mark.parametrize("winner", ["mixed", "float32"])
def test_a_verdict_that_steps_contradict_is_replaced(
    winner: str, tmp_path: pathlib.Path
) -> None:
    def last(calls: int, **now: float) -> str:
        delays = {"float32": now["float32"], MIXED: now["mixed"]}
        return run(CHANGED.format(now=delays, calls=calls), tmp_path)[-1]

    if winner == "mixed":
        assert last(10, mixed=0.0, float32=0.06) == "[5] [''] 1"
        # Called 20 times, and as often as is not counted.
        assert last(30, mixed=0.16, float32=0.0) == "[24] ['float32'] 0"
        assert last(10, mixed=0.16, float32=0.0) == "[] [''] 0"
    else:
        assert last(10, mixed=0.06, float32=0.0) == "[5] ['float32'] 0"
        # Both instances in float32 are slow now: the one that runs, and the other.
        assert last(30, mixed=0.16, float32=0.16) == "[21] ['plan 2'] 1"
        assert last(10, mixed=0.0, float32=0.0) == "[] [''] 1"
