"""What XLA compiles is planned for the device that it runs on: with a GPU, for that.

The GPU is pretended: it is among the present devices, and ops have the kernels that
their definitions allow. What is planned for it runs on the CPU.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
import textwrap

import pytest

from tests.forking import run_forked
from tests.printed_programs import beginning

IMPORTS = """
    import tensorflow as tf
    import tf_amp
"""
PRETEND = beginning(
    pathlib.Path(__file__).with_name("programs_of_devices.txt"), "PRETENDED_GPU"
)
# Layers of BERT-base, of which there are two, and a smaller vocabulary.
BERT = """
    import keras
    from keras import layers

    def layer(hidden):
        attended = layers.MultiHeadAttention(12, 64, dropout=0.1)(hidden, hidden)
        hidden = layers.LayerNormalization()(hidden + layers.Dropout(0.1)(attended))
        wide = layers.Dense(3072, "gelu")(hidden)
        narrow = layers.Dropout(0.1)(layers.Dense(768)(wide))
        return layers.LayerNormalization()(hidden + narrow)

    words = keras.Input((128,), dtype="int32")
    hidden = layers.LayerNormalization()(layers.Embedding(8000, 768)(words))
    pooled = layers.Dense(768, "tanh")(layer(layer(hidden))[:, 0])
    model = keras.Model(words, layers.Dense(2)(pooled))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss

    x, y = tf.TensorSpec((32, 128), tf.int32), tf.TensorSpec((32,), tf.int32)
    compiled = tf.function(step, jit_compile=True)
    outer = tf.function(lambda x, y: compiled(x, y))
"""
REPORT = """
    import json

    def said(plan):
        rows = [row for row in plan.decisions if row.op in ("MatMul", "BatchMatMulV2")]
        low = sum(row.is_low for row in rows)
        return plan.low_dtype, low, len(rows), plan.predicted_speedup
"""


def printed(*parts: str) -> list[str]:
    # No other test has measured there what a call takes.
    with tempfile.TemporaryDirectory() as cache:
        code = "".join(map(textwrap.dedent, parts))
        return run_forked(code, env={"TF_AMP_CACHE": cache}).lines()


@pytest.fixture(scope="module")
def bert() -> dict[str, tuple[str, int, int, float]]:
    code = """
    tf_amp.enable(strict=True)
    compiled.get_concrete_function(x, y)
    found = {
        "done": tf_amp.plans()[-1],
        "explained": tf_amp.explain(compiled, x, y),
        "explained outside": tf_amp.explain(outer, x, y),
        "audited": tf_amp.audit(compiled, x, y, device_profile="h100").plan,
        "audited outside": tf_amp.audit(outer, x, y, device_profile="h100").plan,
    }
    print(json.dumps({name: said(plan) for name, plan in found.items()}))
    """
    return json.loads(printed(PRETEND, BERT, REPORT, code)[-1])


def test_a_compiled_bert_step_gains_on_a_gpu_though_no_profile_is_named(bert) -> None:
    dtype, low, products, speedup = bert["done"]
    assert dtype == "bfloat16" and low > 0.8 * products > 30
    assert speedup > 1.2


def test_whoever_is_asked_about_it_says_the_same(bert) -> None:
    speedups = [speedup for *_, speedup in bert.values()]
    # The prices of calls are those of this host, or none.
    assert speedups == pytest.approx([bert["done"][-1]] * len(bert), rel=0.05)
    assert len({tuple(rest) for *rest, _ in bert.values()}) == 1


def test_without_a_gpu_such_a_step_stays_float32_and_its_audit_is_as_with_one(
    bert,
) -> None:
    code = """
    tf_amp.enable(strict=True)
    compiled.get_concrete_function(x, y)
    audit = tf_amp.audit(outer, x, y, device_profile="h100")
    worst = audit.obstacles[0]
    print(len(tf_amp.plans()), worst.nodes[0].startswith("step/"), audit.summary())
    print(json.dumps(said(audit.plan)))
    """
    *_, summary, audited = printed(IMPORTS, BERT, REPORT, code)
    assert summary.startswith("0 True ") and summary.endswith("pays on h100")
    assert "not" not in summary
    assert json.loads(audited) == bert["audited outside"]
