"""What steps have found is remembered, and what is in doubt is compared."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import tensorflow as tf

from grappler_pass.planning.draft import Outcome, Trial
from tests.tf_amp.compare.given_steps import (
    FASTER,
    SLOWER,
    Steps,
    product,
    trial_of,
)
from tf_amp.compare.alternation import Verdict
from tf_amp.compare.verdicts import FILE, StepMemory, StepVerdicts


@pytest.fixture
def trial() -> Trial:
    return trial_of(product(16))


def outcome(trial: Trial, folder: pathlib.Path) -> Outcome:
    """Return what a process says that has just started."""
    memory = StepMemory("this CPU", folder / FILE)
    own_steps = StepVerdicts(memory, {"CPU": memory})
    return own_steps.outcome(trial, lambda is_faster: None)


@pytest.mark.parametrize("compared", [FASTER, SLOWER])
def test_a_verdict_outlives_the_process(
    compared: Verdict, trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(compared)
    expected = Outcome.FASTER if compared is FASTER else Outcome.SLOWER
    assert outcome(trial, tmp_path) is expected
    assert steps.begun == 1


def test_what_failed_once_may_be_tried_by_another_process(
    trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(None)
    assert outcome(trial, tmp_path) is Outcome.OPEN


def test_what_is_certain_is_not_compared_unless_steps_have_said_otherwise(
    trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    certain = dataclasses.replace(trial, is_certain=True)
    assert outcome(certain, tmp_path) is Outcome.UNKNOWN
    assert steps.begun == 0
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(SLOWER)
    assert outcome(certain, tmp_path) is Outcome.SLOWER


def _with_function_of(op: str, **attrs: object) -> tf.compat.v1.GraphDef:
    """Return a graph that has a function with a node in its library."""
    graph_def = product(16)
    function = graph_def.library.function.add()
    function.signature.name = "inner"
    node = function.node_def.add(name="inner", op=op)
    for name, value in attrs.items():
        field = "s" if isinstance(value, bytes) else "i"
        setattr(node.attr[name], field, value)
    return graph_def


@pytest.mark.parametrize(
    ("graph_def", "expected"),
    [
        (_with_function_of("RandomUniform", seed=0, seed2=0), Outcome.OPEN),
        (_with_function_of("RandomUniform", seed=0, seed2=7), Outcome.KERNEL_STATE),
        (_with_function_of("StatelessRandomUniformV2"), Outcome.OPEN),
        (_with_function_of("FIFOQueueV2"), Outcome.KERNEL_STATE),
        (_with_function_of("FIFOQueueV2", shared_name=b"queue"), Outcome.OPEN),
        (_with_function_of("BatchFunction", shared_name=b""), Outcome.KERNEL_STATE),
        (_with_function_of("Stage"), Outcome.OPEN),
    ],
)
def test_what_keeps_state_in_kernels_is_not_compared(
    graph_def: tf.compat.v1.GraphDef,
    expected: Outcome,
    tmp_path: pathlib.Path,
    steps: Steps,
) -> None:
    assert outcome(trial_of(graph_def), tmp_path) is expected
    assert steps.begun == (expected is Outcome.OPEN)


def test_outside_of_a_call_nothing_is_compared(
    trial: Trial, tmp_path: pathlib.Path
) -> None:
    assert outcome(trial, tmp_path) is Outcome.UNKNOWN
