"""Under enable_op_determinism two processes make the same plan, byte for byte."""

from __future__ import annotations

import pathlib

from tests.forking import run_forked
from tf_amp.compare.verdicts import memory_path

PROGRAM = """
import tensorflow as tf
import tf_amp

tf.keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
tf_amp.enable(dtype="bfloat16", opt_level="O1")

@tf.function
def step(x):
    for _ in range(3):
        x = tf.tanh(x @ x)
    return x

x = tf.ones([512, 512])
{before}
for _ in range(30):
    step(x)
print(tf_amp.explain(step, x).to_json())
for plan in tf_amp.plans():
    print(plan.to_json())
"""
# As an earlier process would have learned it of a product.
LEARN = """
from grappler_pass.costs import OpCall, TensorSpec
from tf_amp.config.amp_config import AmpConfig
from tf_amp.compare.verdicts import memory_of
from tf_amp.rewriting.graph_settings import settings_from_config
from tf_amp.tracing.stamps import current_config

spec = TensorSpec((512, 512), "float32")
model = settings_from_config(current_config(), "CPU").models["CPU"]
call = OpCall("MatMul", {}, (spec, spec), (spec,))
cells = [model.expected(call, dtype).cell for dtype in ("float32", "bfloat16")]
readings = [[0.1] * 3, [-3.0] * 3]
memory_of(current_config().cache_dir, "CPU").learn(dict(zip(cells, readings)))
"""


def plans_of(cache: pathlib.Path, before: str = "") -> str:
    env = {"TF_AMP_CACHE": str(cache), "TF_AMP_TUNE": "on"}
    done = run_forked(PROGRAM.format(before=before), env=env)
    assert done.code == 0, done.err
    return done.out


def test_with_nothing_learned_plans_are_equal_and_nothing_is(
    tmp_path: pathlib.Path,
) -> None:
    first = plans_of(tmp_path)
    assert first == plans_of(tmp_path)
    assert not memory_path(tmp_path).exists() and '"learned"' not in first


def test_what_was_learned_is_an_input_of_the_plan_and_stays_as_it_is(
    tmp_path: pathlib.Path,
) -> None:
    plans_of(tmp_path, LEARN)
    before = memory_path(tmp_path).read_text()
    first = plans_of(tmp_path)
    assert first == plans_of(tmp_path)
    assert '"learned"' in first and '"bfloat16"' in first
    assert memory_path(tmp_path).read_text() == before
