"""How the table of predictions reads."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.prediction import Figures, figures_from_json, is_near, markdown

RIGHT = Figures("mlp", "train", (0.100, 0.050), (0.110, 0.052), 3, True)


def test_what_is_within_the_limits_is_counted() -> None:
    wrong = dataclasses.replace(RIGHT, model="bert", predicted=(0.100, 0.080))
    text = markdown([RIGHT, wrong])
    assert "| MLP | train | 100 | 110 | 0.91 | 50 | 52 | 0.96 | 50 | 53 | -3 |" in text
    assert "train: both precisions within 20 % for 1 of 2 models" in text
    assert "the gain within 10 points for 1." in text


def test_of_several_rounds_the_middle_counts() -> None:
    slow = dataclasses.replace(RIGHT, predicted=(0.200, 0.050))
    text = markdown([RIGHT, slow, RIGHT])
    assert "| 100 | 110 | 0.91 (0.91-1.82) | 50 | 52 | 0.96 (0.96-0.96) |" in text
    assert "both precisions within 20 % for 1 of 1 models" in text


def test_what_is_off_is_bold() -> None:
    wrong = dataclasses.replace(RIGHT, predicted=(0.200, 0.190))
    text = markdown([wrong])
    assert "| 200 | 110 | **1.82** | 190 | 52 | **3.65** | 5 | 53 | **-48** |" in text


def test_an_empty_plan_is_called_so() -> None:
    empty = dataclasses.replace(RIGHT, predicted=(0.1, 0.1), low_slots=0)
    assert "| none | 53 |" in markdown([empty])


def test_figures_survive_the_way_between_processes() -> None:
    assert figures_from_json(json.dumps(dataclasses.asdict(RIGHT))) == RIGHT


@pytest.mark.parametrize(
    ("predicted", "near"), [(0.8, True), (1.19, True), (0.79, False), (1.3, False)]
)
def test_near_is_within_a_fifth(predicted: float, near: bool) -> None:
    assert is_near(predicted, 1.0) is near
