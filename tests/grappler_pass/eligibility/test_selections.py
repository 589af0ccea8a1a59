"""A comparison with a selected value is rounded as the selection is."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.equivalence import Baseline, assert_equivalent
from tests.programs import Program
from tests.rewriters import rewritten_by, settings_of
from tests.sketch import sketch
from tests.soundness import LOW_DTYPES, colors

both_dtypes = pytest.mark.parametrize("low_dtype", sorted(LOW_DTYPES))


def maximum_with_gradient() -> Program:
    with sketch() as s:
        y = tf.matmul(s.feed(4, 8), s.weight(8, 8), name="allow1")
        largest = tf.reduce_max(y, axis=1, name="largest")
        loss = tf.reduce_sum(tf.matmul(largest[None], s.weight(4, 4, name="v")))
        gradients = tf.gradients(loss, tf.compat.v1.global_variables(), name="back")
        return s.program(loss, *map(tf.identity, gradients))


@both_dtypes
def test_a_maximum_and_its_gradients_comparison_go_low_together(low_dtype: str) -> None:
    after = assert_equivalent(maximum_with_gradient(), low_dtype).graph_def
    assert colors(after, "largest back/largest_grad/Equal") == "L L"


@pytest.mark.parametrize("kept", ["largest", "back/largest_grad/Equal"])
@both_dtypes
def test_a_maximum_and_its_gradients_comparison_stay_together(
    low_dtype: str, kept: str
) -> None:
    baseline = Baseline.from_program(maximum_with_gradient(), capture=False)
    settings = settings_of(low_dtype, "O2", exclude=(f"^{kept}$",))
    after = baseline.rewrite(settings).graph_def
    assert colors(after, "allow1 largest back/largest_grad/Equal") == "L F F"
    assert baseline.compare(after, low_dtype).ok


@pytest.fixture(scope="module")
def scan_of_maxima() -> Baseline:
    with sketch(v2_control_flow=True) as s:
        w = s.weight(8, 8)
        y = tf.scan(
            lambda state, row: tf.reduce_max(tf.matmul(row, w) + state, axis=0),
            s.feed(3, 4, 8),
            initializer=tf.zeros([8]),
        )
        loss = tf.reduce_mean(tf.square(y))
        gradient = tf.gradients(loss, tf.compat.v1.global_variables())[0]
        return Baseline.from_program(s.program(loss, tf.identity(gradient)))


@pytest.mark.parametrize("seed", range(6))
@both_dtypes
def test_no_mixture_of_colors_divides_by_zero(
    scan_of_maxima: Baseline, low_dtype: str, seed: int
) -> None:
    settings = settings_of(low_dtype, "O1", seed=seed, margin=-1e9)
    after = scan_of_maxima.rewrite(settings).graph_def
    assert scan_of_maxima.compare(after, low_dtype).ok


@both_dtypes
def test_a_threshold_taken_from_the_values_themselves(low_dtype: str) -> None:
    with sketch() as s:
        y = tf.matmul(s.feed(4, 8), s.weight(8, 8))
        threshold = tf.math.top_k(y, k=2, name="largest").values[..., -1:]
        below = tf.less(y, threshold, name="below")
        program = s.program(tf.reduce_sum(tf.cast(below, tf.int32), axis=1))
    for kept in ("^largest$", "^below$", "^$"):
        settings = settings_of(low_dtype, "O2", exclude=(kept,))
        rewrite = rewritten_by(program.graph_def, program.item, settings)
        assert colors(rewrite.graph_def, "largest below") in ("L L", "F F")
