"""Functions compiled by XLA are rewritten: 16 bits show in the numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.xla_chain import DEPTH, WEIGHTS, Chain, X, error, exact

pytestmark = pytest.mark.usefixtures("everything_eligible")


def assert_16_bits(found: list[tf.Tensor], wanted: list[np.ndarray]) -> None:
    """Check that errors are those of rounding to 8 significant bits, layer by layer."""
    epsilon = 2.0**-8
    assert epsilon / 8 < error(found, wanted) < 2 * DEPTH * epsilon


def is_low(node: tf.compat.v1.NodeDef) -> bool:
    return "T" in node.attr and node.attr["T"].type == tf.bfloat16.as_datatype_enum


def names_of_plans() -> list[str]:
    return [plan.graph for plan in tf_amp.plans()]


def compiled(function) -> tf.types.experimental.GenericFunction:
    return tf.function(function, jit_compile=True)


def with_the_tape_inside(chain: Chain) -> list[tf.Tensor]:
    return compiled(lambda: chain.gradients(chain.loss))()


def with_an_eager_tape_around(chain: Chain) -> list[tf.Tensor]:
    return chain.gradients(compiled(chain.loss))


def with_a_tape_in_an_outer_function(chain: Chain) -> list[tf.Tensor]:
    loss = compiled(chain.loss)
    return tf.function(lambda: chain.gradients(loss))()


@pytest.mark.parametrize(
    ("way", "backward"),
    [
        (with_the_tape_inside, 0),
        (with_an_eager_tape_around, 1),
        (with_a_tape_in_an_outer_function, 1),
    ],
)
def test_gradients_are_in_16_bits_wherever_the_tape_is(way, backward: int) -> None:
    assert_16_bits(way(Chain()), exact())
    names = names_of_plans()
    assert sum(name.startswith("__backward_") for name in names) == backward


def test_with_a_persistent_tape_for_gradients_of_gradients() -> None:
    def penalty(chain: Chain, loss) -> list[tf.Tensor]:
        with tf.GradientTape() as outer:
            gradient = chain.gradients(loss)[0]
            size = tf.reduce_sum(gradient**2)
        return [outer.gradient(size, chain.weights[1])]

    with tf_amp.float32_scope():
        chain = Chain()
        wanted = [g.numpy() for g in penalty(chain, tf.function(chain.loss))]
    chain = Chain()
    found = penalty(chain, compiled(chain.loss))
    assert 2.0**-11 < error(found, wanted) < 2 * DEPTH * 2.0**-8


def test_a_function_called_within_xla_has_a_copy_and_stays_itself_outside() -> None:
    chain = Chain()
    inner = tf.function(chain.loss)
    step = compiled(lambda: chain.gradients(inner))
    assert_16_bits(step(), exact())
    assert "under XLA" in tf_amp.plans()[-1].profile
    inner(X)
    assert "under XLA" not in tf_amp.plans()[-1].profile


def test_a_compiled_function_within_a_compiled_one_is_rewritten_once() -> None:
    chain = Chain()
    inner = compiled(chain.loss)
    outer = compiled(lambda: inner(X))
    outer()
    assert names_of_plans() == ["loss"]
    step = compiled(lambda: chain.gradients(inner))
    assert_16_bits(step(), exact())


def test_loops_and_branches_are_rewritten_where_they_are() -> None:
    class Looping(Chain):
        def loss(self, x: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(DEPTH - 1):
                x = tf.tanh(x @ self.weights[0])
            x = tf.cond(
                tf.reduce_sum(x) < np.inf,
                lambda: x @ self.weights[1],
                lambda: x @ self.weights[2],
            )
            return tf.reduce_mean(x**2)

        def gradients(self, loss_function, x: tf.Tensor = X) -> list[tf.Tensor]:
            return super().gradients(loss_function, x)[:2]

    assert_16_bits(with_the_tape_inside(Looping()), exact(Looping))
    low = {d.slot.node for p in tf_amp.plans() for d in p.decisions if d.is_low}
    assert {"while/matmul", "cond/matmul"} <= low


@pytest.mark.parametrize("in_loop", [False, True])
def test_variables_are_updated_in_float32(in_loop: bool) -> None:
    def train(make_function) -> list[np.ndarray]:
        chain = Chain()
        optimizer = tf.keras.optimizers.Adam(1e-2)
        optimizer.build(chain.weights)

        def step() -> None:
            gradients = chain.gradients(chain.loss)
            optimizer.apply_gradients(zip(gradients, chain.weights, strict=True))

        def steps() -> None:
            for _ in tf.range(3) if in_loop else range(3):
                step()

        make_function(steps)()
        return [v.numpy() for v in chain.weights]

    with tf_amp.float32_scope():
        wanted = train(tf.function)
    found = train(compiled)
    moved = [w - start for w, start in zip(wanted, WEIGHTS, strict=True)]
    changed = [f - start for f, start in zip(found, WEIGHTS, strict=True)]
    assert 0 < error(changed, moved) < 0.1
    # Weights that had been rounded to 16 bits would have no bits below these.
    assert all((f != f.astype(tf.bfloat16.as_numpy_dtype)).mean() > 0.9 for f in found)


def test_what_was_traced_in_a_float32_scope_stays_as_it_is() -> None:
    chain = Chain()
    loss = compiled(chain.loss)
    with tf_amp.float32_scope():
        loss(X)
    assert names_of_plans() == []
    assert error(chain.gradients(loss), exact()) < 1e-5


def test_what_was_traced_while_off_stays_as_it_is() -> None:
    tf_amp.disable()
    chain = Chain()
    loss = compiled(chain.loss)
    loss(X)
    tf_amp.enable("bfloat16", opt_level="O2", strict=True, loss_scale="none")
    loss(X)
    assert names_of_plans() == []


def test_a_scope_alone_is_enough() -> None:
    tf_amp.disable()
    with tf_amp.mixed_precision_scope(dtype="bfloat16", opt_level="O2"):
        assert_16_bits(with_the_tape_inside(Chain()), exact())


def test_signatures_stay_and_graphs_show_what_was_traced() -> None:
    chain = Chain()
    loss = compiled(chain.loss)
    concrete = loss.get_concrete_function(tf.TensorSpec(X.shape))
    definition = concrete.function_def
    assert {arg.type for arg in definition.signature.output_arg} == {1}
    assert "MatMul" in {n.op for n in definition.node_def if is_low(n)}
    traced = [t.dtype for op in concrete.graph.get_operations() for t in op.outputs]
    assert tf.bfloat16 not in traced


def test_on_a_cpu_nothing_changes_where_speed_decides() -> None:
    tf_amp.enable(
        "bfloat16", opt_level="O1", strict=True, device_profile="cpu-avx512-bf16"
    )
    chain = Chain()
    step = compiled(lambda: chain.gradients(chain.loss))
    definition = step.get_concrete_function().function_def
    assert names_of_plans() == []
    assert not any(map(is_low, definition.node_def))
    plan = tf_amp.explain(step)
    assert plan.is_empty and plan.profile == "cpu-avx512-bf16 under XLA"


def test_what_is_exported_was_never_rewritten(tmp_path) -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chain = Chain()
            self.weights = self.chain.weights
            self.inner = tf.function(self.chain.loss)

        @tf.function(jit_compile=True, input_signature=[tf.TensorSpec(X.shape)])
        def loss(self, x):
            return self.inner(x)

    model = Model()
    found = model.loss(X)
    tf.saved_model.save(model, str(tmp_path))
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    data = (tmp_path / "saved_model.pb").read_bytes()
    graph_def = SavedModel.FromString(data).meta_graphs[0].graph_def
    for function in graph_def.library.function:
        assert "__in___inference" not in function.signature.name
        assert not any(map(is_low, function.node_def))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded.loss(X), found, rtol=1e-2)
