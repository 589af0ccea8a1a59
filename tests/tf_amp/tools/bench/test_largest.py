"""The largest batch in a limit of memory is found with few processes."""

from __future__ import annotations

import pathlib
import re
import sys

import pytest

from tests.processes import run, sources
from tf_amp.tools.bench.largest import MEBI, largest_batch


@pytest.mark.parametrize("most", [3, 8, 25, 1000])
@pytest.mark.parametrize("known", [1, 500, 40_000])
@pytest.mark.parametrize("is_told", [True, False])
def test_the_largest_batch_is_found_within_a_twentieth(
    most: int, known: int, is_told: bool
) -> None:
    tried: list[int] = []

    def taken(batch: int) -> int | None:
        tried.append(batch)
        size = 200 * MEBI + batch * MEBI if is_told else 0
        return size if batch <= most else None

    found = largest_batch(taken, (200 + most) * MEBI, 8, {0: 0, 8: known * MEBI})
    assert 0.95 * most - 1 <= found <= most
    assert len(tried) < 20
    assert largest_batch(lambda _: None, MEBI, 8) == 0


SQUARES = """
def make_step(batch):
    if batch == 3:
        raise ValueError("three")
    import tensorflow as tf
    x = tf.ones([batch, 10**6])
    return tf.function(lambda: tf.reduce_sum(tf.sqrt(x)))
"""
COMMAND = [sys.executable, "-m", "tf_amp", "bench", "squares:make_step"]
COMMAND += ["--mode", "infer", "--methods", "float32", "--step-seconds", "0.01"]
COMMAND += ["--largest-batch", "50", "--batches"]


def test_processes_keep_to_the_limit_and_find_the_largest_batch(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "squares.py").write_text(SQUARES)
    # Few tries find it from there.
    done = run([*COMMAND, "4"], env=sources(), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "squares:make_step, infer, tensors of 50 MiB at most" in done.out
    assert re.search(r"^float32 +4 +1\.00 +\d", done.out, re.MULTILINE), done.out
    refused = run([*COMMAND, "3"], env=sources(), cwd=tmp_path)
    assert refused.code == 2 and "three" in refused.err
