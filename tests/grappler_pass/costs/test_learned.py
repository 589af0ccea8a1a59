"""What steps teach corrects prices of its own cell once several readings agree."""

from __future__ import annotations

import math

import pytest

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs.model import (
    AGREEMENT,
    LEAST_SECONDS,
    MOST_READINGS,
    RUN_TO_RUN,
    Learned,
    Lesson,
    log_ratio,
)

PROFILE = DeviceProfile.load("cpu-avx512-bf16")
LOW = "bfloat16"


def matmul(rows: int) -> OpCall:
    x, w = TensorSpec((rows, 256), "float32"), TensorSpec((256, 256), "float32")
    return OpCall("MatMul", {}, (x, w), (TensorSpec((rows, 256), "float32"),))


def plain(call: OpCall, dtype: str) -> float:
    return CostModel(PROFILE).price(call, dtype).seconds


def taught(readings: list[float], rows: int = 256) -> CostModel:
    """Return a model that has learned of one product in 16 bits."""
    model = CostModel(PROFILE, Learned())
    expected = model.expected(matmul(rows), LOW)
    assert expected is not None
    model.learned.add({expected.cell: readings})
    return model


def test_readings_that_agree_correct_the_price() -> None:
    price = taught([math.log(3.0)] * 3).price(matmul(256), LOW)
    assert price.source == "learned"
    assert price.seconds == pytest.approx(3.0 * plain(matmul(256), LOW))
    assert price.error == pytest.approx(RUN_TO_RUN)


@pytest.mark.parametrize(
    "readings", [[1.0], [1.0, 1.0], [0.0, 1.0, 0.1], [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]]
)
def test_few_readings_or_such_as_disagree_are_not_believed(
    readings: list[float],
) -> None:
    price = taught(readings).price(matmul(256), LOW)
    assert price == CostModel(PROFILE).price(matmul(256), LOW)


def test_a_reading_that_a_busy_machine_has_disturbed_does_not_count() -> None:
    price = taught([1.0, 3.0, 1.1, 0.9]).price(matmul(256), LOW)
    assert price.source == "learned"
    assert price.seconds == pytest.approx(math.exp(1.05) * plain(matmul(256), LOW))
    assert price.error == pytest.approx(math.hypot(0.1, RUN_TO_RUN))


def test_a_lesson_is_of_its_own_type_op_and_size() -> None:
    model = taught([1.0] * 3)
    # Of sizes that are the same to a power of two.
    assert model.price(matmul(300), LOW).source == "learned"
    assert model.price(matmul(512), LOW).source == "profile"
    assert model.price(matmul(256), "float32").source == "profile"
    spec = TensorSpec((256, 256), "float32")
    assert model.price(OpCall("Tanh", {}, (spec,), (spec,)), LOW).source == "profile"


def test_what_is_learned_later_counts_from_then_on() -> None:
    model = CostModel(PROFILE, Learned())
    before = model.price(matmul(256), LOW)
    cell = model.expected(matmul(256), LOW).cell
    model.learned.add({cell: [0.5] * 2})
    assert model.price(matmul(256), LOW) == before
    model.learned.add({cell: [0.5]})
    assert model.price(matmul(256), LOW).seconds > 1.5 * before.seconds


def test_the_latest_readings_count_so_that_a_wrong_lesson_is_forgotten() -> None:
    lesson = Lesson().with_readings([2.0] * 3)
    assert lesson.is_believed and lesson.ratio == pytest.approx(math.exp(2.0))
    lesson = lesson.with_readings([0.0] * 3)
    assert not lesson.is_believed
    lesson = lesson.with_readings([0.0] * 6)
    assert lesson.is_believed and lesson.ratio == 1.0
    assert len(lesson.logs) == MOST_READINGS


def test_what_is_too_short_to_tell_or_is_believed_is_not_read_again() -> None:
    learned = Learned()
    learned.add({"short": [], "known": [0.1] * 3, "few": [0.1]})
    is_over = {cell: lesson.is_over for cell, lesson in learned.lessons.items()}
    assert is_over == {"short": True, "known": True, "few": False}


@pytest.mark.parametrize(
    ("measured", "expected", "log"),
    [
        (LEAST_SECONDS / 2, 1e-3, None),
        (1e-7, 1e-3, None),
        (1.0, 1e-3, None),
        (2e-3, 1e-3, math.log(2.0)),
        (2e-3, 0.0, None),
    ],
)
def test_what_the_clock_cannot_tell_is_no_reading(
    measured: float, expected: float, log: float | None
) -> None:
    assert log_ratio(measured, expected) == (log and pytest.approx(log))


def test_what_runs_no_kernel_or_has_a_guessed_size_teaches_nothing() -> None:
    model, guessed = CostModel(PROFILE), TensorSpec((None, 8), "float32")
    constant = OpCall("Const", {}, (), (TensorSpec((8,), "float32"),))
    assert model.expected(constant, "float32") is None
    tanh = OpCall("Tanh", {}, (guessed,), (guessed,))
    assert model.expected(tanh, "float32") is None


def test_agreement_is_within_what_two_runs_of_a_machine_differ_by() -> None:
    assert 2 * RUN_TO_RUN < AGREEMENT
