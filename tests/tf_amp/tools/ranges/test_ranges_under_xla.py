"""Ranges of functions that XLA compiles: recorded as elsewhere, and kept to there."""

import math

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.command_lines import run_line
from tf_amp.config.ranges import Ranges

WIDTH = 8
BATCHES = [np.full((2, WIDTH), value, np.float32) for value in (1.0, 20000.0)]
# What a product sums up to, beyond what float16 holds.
LARGE = WIDTH * 20000.0


def _scaled_down(x):
    large = tf.matmul(x, tf.ones((WIDTH, WIDTH)), name="large")
    small = tf.multiply(large, 2.0**-17, name="small")
    return tf.matmul(small, tf.eye(WIDTH), name="last")


def _alone():
    return tf.function(_scaled_down, jit_compile=True)


def _called():
    inner = _alone()
    return tf.function(lambda x: inner(x) + 1.0)


def _called_in_compiled():
    inner = _alone()
    return tf.function(lambda x: inner(x) + 1.0, jit_compile=True)


@pytest.fixture(autouse=True)
def switched_off():
    yield
    tf_amp.disable()


@pytest.mark.parametrize("make", [_alone, _called, _called_in_compiled])
@pytest.mark.parametrize("enabled", [False, True])
def test_compiled_functions_are_recorded_in_float32(make, enabled):
    if enabled:
        tf_amp.enable("float16", opt_level="O2", loss_scale="none")
    seen = tf_amp.ranges(make(), BATCHES)
    products = [each for each in seen.tensors if each.op == "MatMul"]
    assert [each.largest for each in products] == [LARGE, LARGE * 2.0**-17]
    assert [each.batches for each in products] == [2, 2]
    assert products[0].largest_in == 2
    unsafe = seen.unsafe("float16")
    assert {name for name in unsafe if "/" not in name} == {"large", "small"}


@pytest.mark.parametrize("make", [_alone, _called, _called_in_compiled])
def test_what_left_the_safe_range_stays_float32_under_xla(make, tmp_path):
    file = tmp_path / "ranges.json"
    tf_amp.ranges(make(), BATCHES).save(file)

    tf_amp.enable("float16", opt_level="O2", loss_scale="none")
    assert not math.isfinite(make()(BATCHES[1])[0, 0])
    tf_amp.enable("float16", opt_level="O2", loss_scale="none", ranges=file)
    assert math.isfinite(make()(BATCHES[1])[0, 0])
    plan = next(p for p in reversed(tf_amp.plans()) if "under XLA" in p.profile)
    kept = plan.filter(reason="measured_range").decisions
    assert "large" in {d.slot.node for d in kept}
    assert "last" in {d.slot.node for d in plan.decisions if d.is_low}


_SCRIPT = """
import tensorflow as tf

w = tf.Variable(tf.ones((8, 8)))

@tf.function(jit_compile=True)
def step(x):
    for _ in tf.range(2):
        if tf.reduce_sum(x) > 0.0:
            large = tf.matmul(x, w, name="large")
            x = tf.matmul(large * 2.0**-17, w, name="last")
    return x

for value in (1.0, 20000.0):
    print(bool(tf.math.is_finite(step(tf.fill((2, 8), value))[0, 0])))
"""


def test_scripts_are_recorded_in_loops_and_branches_of_compiled_functions(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    done = run_line("tf-amp ranges train.py --out ranges.json", tmp_path)
    assert done.code == 0, done.err
    seen = Ranges.load(tmp_path / "ranges.json").tensors
    (large,) = (each for each in seen if each.node.endswith("/large"))
    # Two runs of two rounds each.
    assert (large.batches, large.values) == (2, 2 * 2 * 2 * 8)
    assert large.largest == LARGE

    def printed(**env):
        on = {"TF_ENABLE_AUTO_MIXED_PRECISION": "float16", "TF_AMP_OPT_LEVEL": "O2"}
        return run_line("python train.py", tmp_path, env={**on, **env}).lines()

    assert printed() == ["True", "False"]
    assert printed(TF_AMP_RANGES="ranges.json") == ["True", "True"]
