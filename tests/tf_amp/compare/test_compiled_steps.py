"""A function that XLA compiles beside the program never stops a step of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private.functions import WHOLE, on_copies
from tf_amp.compare.compiled_steps import WholeSteps


def steps_of(outcomes: list[tuple[bool, str]], **more: Any) -> WholeSteps:
    """Return a comparison of what earlier steps have found faster."""

    def report(steps: WholeSteps, is_faster: bool, measured: object) -> None:
        outcomes.append((is_faster, steps.refusal))

    given = {"examine": lambda inputs: 0.0, "make": lambda: None, "before": None}
    return WholeSteps("step", "", 40, report, is_known=True, **{**given, **more})


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
