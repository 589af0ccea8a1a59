"""What needs float32: norms, losses, masks, dropout, optimizers, tables."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.pipeline import Rewrite
from tests.equivalence import Baseline, assert_equivalent
from tests.grappler_pass.rewriting.patterns import gradients_of, rewritten
from tests.programs import Program, program_from_function, run, with_state
from tests.rewriters import rewritten_by, settings_of
from tests.sketch import Sketch, sketch
from tests.soundness import LOW_DTYPES, colors, ops_with_dtype

both_dtypes = pytest.mark.parametrize("low_dtype", sorted(LOW_DTYPES))
Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@rewritten(low={"Mean": 0, "SquaredDifference": 0}, least={"MatMul": 4})
def test_moments_of_a_decomposed_layer_normalization_stay_float32(s: Sketch):
    y = tf.matmul(s.feed(4, 16), s.weight(16, 16))
    mean, variance = tf.nn.moments(y, axes=[-1], keepdims=True)
    y = (y - mean) * tf.math.rsqrt(variance + 1e-3) * s.weight(16, name="gamma")
    loss = tf.reduce_mean(tf.square(tf.matmul(y, s.weight(16, 4, name="v"))))
    return loss, *gradients_of(loss)


LOSSES: dict[str, Loss] = {
    "softmax": lambda labels, y: tf.nn.softmax_cross_entropy_with_logits(
        tf.one_hot(labels, 10), y
    ),
    "sparse": lambda labels, y: tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=y
    ),
    "sigmoid": lambda labels, y: tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.one_hot(labels, 10), logits=y
    ),
}


@rewritten(
    low={"MatMul": 2, "Mean": 0},
    capture=True,
    given={kind: (LOSSES[kind],) for kind in sorted(LOSSES)},
)
def test_losses_agree_with_float32(s: Sketch, loss_of: Loss):
    labels = s.feed_value(np.array([0, 3, 9, 5]), "labels")
    y = tf.matmul(s.feed(4, 16, scale=4.0), s.weight(16, 10))
    loss = tf.reduce_mean(loss_of(labels, y))
    after, low_dtype = yield loss, *gradients_of(loss)
    found = ops_with_dtype(after, low_dtype)
    assert not [op for op in found if "CrossEntropy" in op]
    # bfloat16 has the range of Exp, so what follows it is not tainted.
    assert low_dtype == "bfloat16" or found["Log1p"] == 0


@pytest.mark.parametrize("mask", [-1e9, -np.inf])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@both_dtypes
def test_attention_with_a_mask_stays_finite(
    low_dtype: str, mask: float, level: str
) -> None:
    with sketch() as s:
        x = s.feed(2, 5, 8)
        q, k, v = (tf.einsum("btf,fg->btg", x, s.weight(8, 8)) for _ in range(3))
        scores = tf.matmul(q, k, transpose_b=True) * 8**-0.5
        allowed = tf.linalg.band_part(tf.ones([5, 5]), -1, 0)
        if np.isinf(mask):
            scores = tf.where(allowed > 0.0, scores, mask)
        else:
            scores = scores + (1.0 - allowed) * mask
        y = tf.matmul(tf.nn.softmax(scores), v)
        loss = tf.reduce_mean(tf.square(y))
        program = s.program(tf.identity(y), loss, *gradients_of(loss))
    rewrite = assert_equivalent(program, low_dtype, level, capture=True)
    results = run(with_state(rewrite.graph_def, program, program.graph_def), program)
    assert all(np.isfinite(value).all() for value in results)


@rewritten(levels=["O2", "O3"], capture=True)
def test_dropout_draws_the_same_mask(s: Sketch):
    y = tf.nn.relu(tf.matmul(s.feed(16, 16), s.weight(16, 64))) + 0.5
    kept = tf.nn.dropout(y, 0.5, seed=3)
    y = tf.matmul(kept, s.weight(64, 4, name="v"))
    stateless = tf.nn.experimental.stateless_dropout(y + 9.0, 0.5, seed=[1, 2])
    return tf.equal(kept, 0.0), tf.equal(stateless, 0.0), y


@pytest.mark.parametrize("returns", ["loss", "nothing"])
@pytest.mark.parametrize("name", ["Adam", "RMSprop", "SGD"])
@both_dtypes
def test_optimizer_arithmetic_is_float32(
    low_dtype: str, name: str, returns: str
) -> None:
    random = np.random.default_rng(0)
    w = tf.Variable(random.normal(size=(8, 8)).astype(np.float32))
    v = tf.Variable(random.normal(size=(8, 1)).astype(np.float32))
    optimizer = getattr(keras.optimizers, name)(0.01)
    optimizer.build([w, v])

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            y = tf.matmul(tf.nn.relu(tf.matmul(x, w)), v)
            loss = tf.reduce_mean(tf.square(y - 1.0))
        optimizer.apply(tape.gradient(loss, [w, v]), [w, v])
        return [loss] if returns == "loss" else []

    x = random.normal(size=(4, 8)).astype(np.float32)
    program = program_from_function(step, x, steps=3)
    baseline = Baseline.from_program(program)
    after = baseline.rewrite(settings_of(low_dtype, "O2")).graph_def
    found = ops_with_dtype(after, low_dtype)
    assert found["MatMul"] + found["_FusedMatMul"] == 5
    assert not found.keys() & {"Sqrt", "Pow", "RealDiv", "AddN", "Rsqrt"}
    assert not [op for op in found if "Variable" in op]


@rewritten(low={"MatMul": 5, "L2Loss": 0, "Sqrt": 0, "IsFinite": 0}, capture=True)
def test_clipping_by_the_global_norm_is_float32(s: Sketch):
    y = tf.nn.relu(tf.matmul(s.feed(4, 8), s.weight(8, 8)))
    loss = tf.reduce_sum(tf.square(tf.matmul(y, s.weight(8, 4, name="v"))))
    variables = tf.compat.v1.global_variables()
    clipped, norm = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    with tf.control_dependencies([*clipped, loss]):
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        update = optimizer.apply_gradients(zip(clipped, variables, strict=True))
    return s.program(norm, loss, targets=[update], steps=2)


@rewritten(low={"MatMul": 3, "ResourceGather": 0}, capture=True)
def test_sparse_gradients_of_a_table(s: Sketch):
    table = s.variable(3000, 8, name="table")
    ids = s.feed_value(np.array([2999, 2049, 2051, 2049], np.int32), "ids")
    rows = tf.nn.embedding_lookup(table, ids)
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, s.weight(8, 4))))
    variables = tf.compat.v1.global_variables()
    gradients = tf.gradients(loss, variables)
    assert isinstance(gradients[0], tf.IndexedSlices)
    with tf.control_dependencies([gradients[0].values, gradients[1], loss]):
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.1)
        update = optimizer.apply_gradients(zip(gradients, variables, strict=True))
    indices = tf.identity(gradients[0].indices)
    return s.program(loss, indices, targets=[update], steps=2)


def priced(program: Program, profile: str, low_dtype: str = "bfloat16") -> Rewrite:
    """Rewrite a program by the prices of a device."""
    model = CostModel(DeviceProfile.load(profile))
    models = {"CPU": model, "GPU": model}
    settings = settings_of(low_dtype, "O1", models=models)
    return rewritten_by(program.graph_def, program.item, settings)


def test_a_big_table_is_not_cast_for_a_few_rows() -> None:
    with sketch() as s:
        table = s.weight(100_000, 64, name="table")
        ids = s.feed_value(np.arange(512, dtype=np.int32), "ids")
        rows = tf.gather(table, ids, name="rows")
        y = tf.matmul(rows, s.weight(64, 2048))
        y = tf.matmul(tf.nn.relu(y), s.weight(2048, 2048, name="v"))
        program = s.program(tf.identity(y))
    for profile in ("cpu-avx512-bf16", "v100"):
        low = "float16" if profile == "v100" else "bfloat16"
        rewrite = priced(program, profile, low)
        assert rewrite.changed
        assert colors(rewrite.graph_def, "rows", "Tparams") == "F"


def test_a_small_activation_may_be_gathered_in_16_bits() -> None:
    with sketch() as s:
        y = tf.matmul(s.feed(64, 512), s.weight(512, 512))
        ids = s.feed_value(np.arange(512, dtype=np.int32) % 64, "ids")
        rows = tf.gather(y, ids, name="rows")
        y = tf.matmul(rows, s.weight(512, 512, name="v"))
        program = s.program(tf.identity(y))
    rewrite = priced(program, "cpu-avx512-bf16")
    assert colors(rewrite.graph_def, "rows", "Tparams") == "L"


@pytest.mark.parametrize("approximate", [True, False])
def test_a_gelu_that_is_slower_in_16_bits_stays_float32(approximate: bool) -> None:
    with sketch() as s:
        y = tf.matmul(s.feed(1024, 512), s.weight(512, 512))
        y = tf.nn.gelu(y, approximate=approximate)
        y = tf.matmul(y, s.weight(512, 512, name="v"))
        program = s.program(tf.identity(y))
    rewrite = priced(program, "cpu-avx512-bf16")
    found = ops_with_dtype(rewrite.graph_def, "bfloat16")
    assert found["MatMul"] == 2
    assert not found.keys() & {"Tanh", "Erf", "Erfc"}


@pytest.mark.parametrize("profile", ["cpu-generic", "cpu-avx512-bf16"])
def test_float16_gains_nothing_on_a_cpu(profile: str) -> None:
    with sketch() as s:
        y = tf.nn.relu(tf.matmul(s.feed(256, 512), s.weight(512, 512)))
        loss = tf.reduce_mean(tf.square(tf.matmul(y, s.weight(512, 512, name="v"))))
        program = s.program(loss, *gradients_of(loss))
    assert priced(program, profile, "float16").graph_def is program.graph_def
