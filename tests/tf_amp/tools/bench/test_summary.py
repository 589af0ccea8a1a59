"""Rows: speed-ups and their verdicts against the noise, errors, no-ops."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.tf_amp.tools.bench.bench_samples import job_of, record_of, samples_of
from tf_amp.tools.bench.journal import Sample
from tf_amp.tools.bench.record import Row, largest_error, speed_up_of, summarized
from tf_amp.tools.bench.rendering import cells, remarks

FLOAT32 = samples_of("float32", [0.100, 0.100, 0.100])
AGAIN = samples_of("float32 again", [0.105, 0.100, 0.100])


def row_of(samples: list[Sample], again: list[Sample] = AGAIN) -> Row:
    job = job_of(samples[0].method)
    return summarized(job, [*FLOAT32, *again, *samples])[-1]


def test_a_speed_up_is_of_medians_with_the_spread_of_the_rounds() -> None:
    found = speed_up_of({0: 2.0, 1: 4.0, 2: 5.0}, {0: 4.0, 1: 4.0, 3: 8.0})
    assert found is not None
    assert (found.median, found.lowest, found.highest) == (1.0, 1.0, 2.0)
    assert speed_up_of({0: 1.0}, {1: 1.0}) is None


def test_an_error_is_relative_and_the_largest_of_the_rounds() -> None:
    reference = {0: (3.0, 4.0), 1: (3.0, 4.0), 2: (0.0,)}
    assert largest_error({0: (3.0, 4.0), 1: (3.0, 4.5)}, reference) == 0.1
    assert largest_error({2: (0.0,)}, reference) == 0.0
    assert largest_error({0: (3.0,)}, reference) is None
    assert largest_error({0: ()}, {0: ()}) is None
    error = largest_error({0: (3.0, math.nan)}, reference)
    assert error is not None and math.isnan(error)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ([0.050, 0.050, 0.050], "faster"),
        ([0.098, 0.096, 0.097], "within noise"),
        ([0.104, 0.104, 0.104], "within noise"),
        ([0.110, 0.110, 0.110], "slower"),
        ([0.110, 0.200, 0.099], "within noise"),
        ([0.050, 0.050, 0.150], "within noise"),
        ([0.050, 0.050], "too few rounds"),
    ],
)
def test_a_difference_counts_beyond_every_round_of_the_noise(
    seconds: list[float], verdict: str
) -> None:
    assert row_of(samples_of("keras", seconds, low=1)).verdict == verdict


def test_without_float32_nothing_is_compared() -> None:
    (row,) = summarized(job_of("keras"), samples_of("keras", [0.1]))
    assert row.speed_up is None and row.error is None and row.verdict == ""
    assert row.items_per_second == pytest.approx(80.0)


def test_the_repetition_shows_the_noise() -> None:
    row = summarized(job_of(), [*FLOAT32, *AGAIN])[-1]
    assert cells(row)[4:6] == ("1.00 (0.95-1.00)", "noise 5%")


@pytest.mark.parametrize(("low", "is_no_op"), [(0, True), (3, False), (None, False)])
def test_a_method_that_ran_nothing_in_16_bits_is_a_no_op(
    low: int | None, is_no_op: bool
) -> None:
    samples = samples_of("tensorflow", [0.1], low=low)
    assert row_of(samples).is_no_op is is_no_op
    (first, *others) = samples
    warned = [dataclasses.replace(first, warning="graph 'g' stays float32: why")]
    said = remarks(record_of(job_of("tensorflow"), FLOAT32, AGAIN, warned + others))
    assert "tensorflow, batch 8: graph 'g' stays float32: why" in said
    assert any("tensorflow, batch 8: a no-op" in each for each in said) is is_no_op
    assert ("no-op" in cells(row_of(samples))[-1]) is is_no_op


def test_what_the_table_cannot_show_is_remarked() -> None:
    failed = Sample("keras", 8, 0, failure="exit status 1: no memory")
    mixed = samples_of("float32", [0.1], low=4)
    drawn = samples_of("float32 again", [0.1], values=(1.0, 2.1))
    broken = samples_of("tensorflow", [0.1], values=(1.0, math.nan), low=1)
    job = job_of("keras", "tensorflow")
    said = "\n".join(remarks(record_of(job, mixed, drawn, broken, [failed])))
    assert "keras, batch 8: failed, exit status 1: no memory." in said
    assert "float32, batch 8: executed 4 16-bit operations" in said
    assert "float32 again, batch 8: results are off by 4.5e-02" in said
    assert "tensorflow, batch 8: results are not finite." in said


def test_a_failed_method_has_a_row() -> None:
    failed = Sample("keras", 8, 0, failure="exit status 1: no memory")
    assert cells(row_of([failed]))[:4] == ("8", "keras", "failed", "-")


def test_a_script_with_its_own_batch_size_has_no_items_per_second() -> None:
    samples = samples_of("float32", [0.1], batch=None)
    (row,) = summarized(job_of(batches=(None,)), samples)
    assert row.items_per_second is None and cells(row)[0] == "-"


def test_steps_before_a_failure_count_and_a_process_without_any_is_told_first() -> None:
    late, early = samples_of("keras", [0.05, 0.05], low=1)
    late = dataclasses.replace(late, failure="after the steps that count: late")
    early = dataclasses.replace(early, step_seconds=(), failure="early")
    row = row_of([late])
    assert (row.rounds, row.step_seconds) == (1, 0.05)
    assert row.failure == "after the steps that count: late"
    assert "too few rounds, failed" in cells(row)
    assert row_of([late, early]).failure == "early"
