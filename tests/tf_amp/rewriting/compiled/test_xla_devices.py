"""What XLA compiles is planned for the device that it runs on: with a GPU, for that.

The GPU is pretended: it is among the present devices, and ops have the kernels that
their definitions allow. What is planned for it runs on the CPU.
"""

from __future__ import annotations

import json

import pytest

from tests.forking import run_forked

IMPORTS = """
    import tensorflow as tf
    import tf_amp
"""
PRETEND = f"""{IMPORTS}
    from grappler_pass.graph import type_slots
    from tf_amp.config import devices

    H100 = devices.Device(
        "GPU", "/physical_device:GPU:0", "NVIDIA H100 80GB HBM3", (9, 0)
    )
    found = (devices.present_devices()[0], H100)
    devices.present_devices = lambda: found
    type_slots.ABSENT_GPU = "GPU"
    type_slots.kernel_exists.cache_clear()
"""
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
    return run_forked("".join(parts)).lines()


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


PRODUCT = """
    SPEC = tf.TensorSpec((4096, 4096))
    tf_amp.enable(strict=True)

    def product():
        return tf.function(lambda x: tf.nn.relu(x @ x), jit_compile=True)

    def is_low(make):
        before = len(tf_amp.plans())
        make()
        return len(tf_amp.plans()) > before
"""


DEVICES = """
    @tf.function
    def outer(x):
        with tf.device("/device:CPU:0"):
            return product()(x)

    def in_a_scope(name):
        with tf.device(name):
            return product().get_concrete_function(SPEC)

    @tf.function(jit_compile=True)
    def named_within(x):
        with tf.device("/device:CPU:0"):
            return tf.nn.relu(x @ x)

    print(is_low(lambda: product().get_concrete_function(SPEC)))
    print(is_low(lambda: in_a_scope("/device:GPU:0")))
    print(is_low(lambda: in_a_scope("/device:CPU:0")))
    print(is_low(lambda: outer.get_concrete_function(SPEC)))
    print(is_low(lambda: named_within.get_concrete_function(SPEC)))
"""


def test_it_runs_on_the_device_in_force_where_it_is_made_not_on_one_within() -> None:
    lines = printed(PRETEND, PRODUCT, DEVICES)
    assert lines == ["True", "True", "False", "False", "True"]


def test_nor_does_it_in_tensorflow() -> None:
    code = """
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)

    @tf.function(jit_compile=True)
    def named(x):
        with tf.device("/device:CPU:1"):
            return x @ x

    x = tf.ones((2, 2))
    print(named(x).device[-5:])
    with tf.device("/device:CPU:1"):
        print(named(x).device[-5:])
    """
    assert printed(code) == ["CPU:0", "CPU:1"]


def test_loops_and_branches_within_it_are_where_it_is() -> None:
    code = """
    def once(i, x):
        product = lambda: tf.nn.relu(x @ x)
        return i + 1, tf.cond(tf.reduce_sum(x) > 0.0, product, lambda: x)

    @tf.function(jit_compile=True)
    def looping(x):
        return tf.while_loop(lambda i, x: i < 3, once, (0, x))[1]

    print(is_low(lambda: looping.get_concrete_function(SPEC)))
    plan = tf_amp.explain(looping, SPEC)
    print({row.is_low for row in plan.decisions if row.op == "MatMul"})
    """
    assert printed(PRETEND, PRODUCT, code) == ["True", "{True}"]


def test_fit_as_keras_compiles_it_by_itself_on_gpus_gains() -> None:
    code = """
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Dense(1024, "relu") for _ in range(3)])
    model.compile("adam", "mse", jit_compile=True)
    tf_amp.enable(strict=True, opt_level="O2")
    x = np.ones((4096, 1024), np.float32)
    model.fit(x, x, batch_size=4096, steps_per_epoch=1, verbose=0)
    plan = max(tf_amp.plans(), key=lambda plan: plan.seconds_before)
    print(plan.low_dtype, plan.predicted_speedup > 1, "h100 under XLA" in plan.profile)
    """
    assert printed(PRETEND, code) == ["bfloat16 True True"]


def test_what_tensorflow_runs_by_itself_is_planned_for_the_gpu_too() -> None:
    code = """
    plan = tf_amp.explain(tf.function(lambda x: x @ x), tf.TensorSpec((8192, 8192)))
    print(plan.is_empty, plan.seconds_before < 0.01)
    """
    assert printed(PRETEND, code) == ["False True"]
