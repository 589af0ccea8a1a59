"""A function that XLA compiles beside the program never stops a step of it."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.processes import run_python
from tf_amp._tensorflow_private.functions import WHOLE, on_copies
from tf_amp.compare import compiled_steps
from tf_amp.compare.compiled_steps import WholeSteps


def steps_of(outcomes: list[tuple[bool, str]], **more: Any) -> WholeSteps:
    """Return a comparison of what earlier steps have found faster."""

    def report(steps: WholeSteps, is_faster: bool, measured: object) -> None:
        outcomes.append((is_faster, steps.refusal))

    given = {"examine": lambda inputs: 0.0, "make": lambda: on_copies, "before": None}
    return WholeSteps("step", "", 40, report, **{"is_known": True, **given, **more})


def calling(compile: Callable[[], None], step: Callable[[], str]) -> Callable[..., Any]:
    """Return what makes a call of a label, or does something else with it."""

    def call(label: str, way: Callable[..., Any] | None = None) -> Any:
        if way is on_copies:
            return compile()
        if way is not None:
            return way(None)(None, b"", ())
        return WHOLE if label == WHOLE else step()

    return call


def test_a_step_without_memory_is_repeated_once_copies_are_gone() -> None:
    holds, ends, lacks, made = *(threading.Event() for _ in range(3)), 0

    def compile() -> None:
        holds.set()
        assert ends.wait(60)

    def step() -> str:
        nonlocal made
        made += 1
        if lacks.is_set() and not ends.is_set():
            threading.Timer(0.2, ends.set).start()
            raise tf.errors.ResourceExhaustedError(None, None, "")
        return "step"

    outcomes: list[tuple[bool, str]] = []
    steps = steps_of(outcomes)
    call = calling(compile, step)
    while not holds.is_set():
        assert steps.run(call) == "step"
    before = made
    lacks.set()
    assert steps.run(call) == "step" and made == before + 2
    assert ends.is_set() and outcomes == [(False, "")] and steps.winner == ""


def test_what_cannot_be_compiled_leaves_steps_as_they_were() -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("planted")

    for more in ({"examine": fail}, {"make": fail}, {}):
        outcomes: list[tuple[bool, str]] = []
        steps = steps_of(outcomes, **more)
        call = calling(fail, lambda: "step")
        while not steps.is_over:
            assert steps.run(call) == "step"
        assert outcomes == [(False, "planted")]
        assert not steps.is_refused and steps.run(call) == "step"


def test_what_has_been_faster_is_called_once_it_is_compiled() -> None:
    outcomes: list[tuple[bool, str]] = []
    steps, call = steps_of(outcomes), calling(lambda: None, lambda: "step")
    while not steps.is_over:
        assert steps.run(call) == "step"
    assert outcomes == [(True, "")] and steps.run(call) == WHOLE


def another(call_function: Callable[..., Any]) -> Callable[..., None]:
    """Call nothing: how what a function calls might be compiled."""
    return lambda *args: None


def test_a_call_that_may_have_taken_a_batch_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled_steps, "_REPAID", 0.0)
    labels: list[str] = []

    def call(label: str, way: Callable[..., Any] | None = None) -> str:
        if way is not None:
            way(None)(None, b"", ())
            return ""
        labels.append(label)
        if label == WHOLE:
            raise tf.errors.InvalidArgumentError(None, None, "of the program")
        return "step"

    steps = steps_of([], make=lambda: another, is_known=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of the program"):
        while not steps.is_over:
            steps.run(call)
    assert labels[-1] == WHOLE
    # Where all is compiled, nothing has run by then.
    outcomes: list[tuple[bool, str]] = []
    monkeypatch.setattr(compiled_steps, "on_copies", another)
    steps = steps_of(outcomes, is_known=False, make=lambda: another)
    while not steps.is_over:
        assert steps.run(call) == "step"
    assert outcomes == [(False, "of the program")]


def test_what_only_calls_what_is_compiled_does_not_wait_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled_steps, "has_memory_for_copies", lambda: False)
    outcomes: list[tuple[bool, str]] = []
    steps = steps_of(outcomes, make=lambda: another)
    call = calling(lambda: None, lambda: "step")
    while not steps.is_over:
        assert steps.run(call) == "step"
    assert outcomes == [(False, "memory does not hold its variables twice")]
    assert not steps.waits and not steps.is_refused


# Ends while XLA compiles.
CLUSTERS = """
import atexit
import tensorflow as tf
import tf_amp
from tf_amp.compare import background, call_sites, compiled_steps

compiled_steps._REPAID = 0
atexit.register(lambda: print("compiles:", background.is_compiling()))
tf_amp.enable(compile="clusters")

@tf.function
def step(x):
    for i in range(400):
        x = tf.tanh(x * x + 0.001 * i)
    return x

def compiles():
    comparison = next(iter(call_sites.all_sites())).comparison
    return getattr(comparison, "first_seconds", 0.0) > 0.0

step(tf.ones([64]))
for _ in range(3000):
    if compiles():
        break
    step(tf.ones([64]))
print("compiles:", background.is_compiling())
"""
WHOLE_FUNCTION = """
import threading
import time
from tests.tf_amp.compare.test_compiled_steps import calling, steps_of

begins = threading.Event()

def compile():
    begins.set()
    time.sleep(3.0)
    print("compiled")

steps = steps_of([])
call = calling(compile, lambda: "step")
while not begins.is_set():
    steps.run(call)
"""


def test_a_process_ends_once_clusters_are_compiled(tmp_path: pathlib.Path) -> None:
    tunes = {"TF_AMP_TUNE": "on", "TF_AMP_CACHE": str(tmp_path)}
    done = run_python(CLUSTERS, env=tunes)
    assert done.code == 0, done.err
    assert done.out.split("\n")[:2] == ["compiles: True", "compiles: False"]


def test_a_process_ends_once_a_whole_function_is_compiled() -> None:
    done = run_python(WHOLE_FUNCTION)
    assert done.code == 0, done.err
    assert "compiled" in done.out and "AMP115" in done.err
