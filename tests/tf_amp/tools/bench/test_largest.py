"""The largest batch in a limit of memory is found with few processes."""

from __future__ import annotations

import pathlib
import threading

import pytest

from tf_amp.errors import ConfigError
from tf_amp.tools.bench.job import FLOAT32, BenchJob, Program
from tf_amp.tools.bench.largest import MEBI, _Tries, largest_batch


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


def test_a_process_keeps_to_the_limit_and_tells_what_it_took(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squares.py").write_text(
        "def make_step(batch):\n"
        "    if batch == 3:\n"
        "        raise ValueError('three')\n"
        "    import tensorflow as tf\n"
        "    x = tf.ones([batch, 10**6])\n"
        "    return tf.function(lambda: tf.reduce_sum(tf.sqrt(x)))\n"
    )
    monkeypatch.chdir(tmp_path)
    program = Program("function", "squares:make_step")
    job = BenchJob(program, "infer", (FLOAT32,), (4,), 60.0, 0.01)
    tries = _Tries(job, FLOAT32, 50, tmp_path, threading.Event())
    size = tries.taken(4)
    assert size is not None and 16 * MEBI <= size <= 50 * MEBI
    assert tries.seconds.keys() == {4}
    assert tries.taken(100) is None
    with pytest.raises(ConfigError, match="three"):
        tries.taken(3)
