"""Scalars that all updates of an optimizer need are computed once, bit by bit alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tf_amp._tensorflow_private.functions import executed_graphs

tf_keras = pytest.importorskip("tf_keras")

STEPS = 3
SHAPES = [(4, 3), (3,)] * 4
# Of each optimizer, the nodes of a weight that compute scalars alone.
SCALAR_NODES = {
    "Adam": 9,
    "AdamW": 10,
    "Adamax": 4,
    "Nadam": 16,
    "Lamb": 6,
    "Adafactor": 8,
    "Ftrl": 3,
}
KINDS = {
    "Keras 3": (keras.optimizers, keras.Variable),
    "tf_keras": (tf_keras.optimizers, tf.Variable),
}
FUSED = ("shared_scalars",)


@pytest.fixture(autouse=True)
def _ends_disabled() -> Iterator[None]:
    yield
    tf_amp.disable()


def enable(**given) -> None:
    tf_amp.enable(tune="off", device_profile="cpu-generic", **given)


def draws(seed: int) -> list[np.ndarray]:
    numbers = np.random.default_rng(seed)
    return [numbers.normal(size=shape).astype("float32") for shape in SHAPES]


def trained(kind: str, name: str) -> tuple[list[np.ndarray], int]:
    """Take steps; return weights and slots, and how many nodes a step executes."""
    module, make_variable = KINDS[kind]
    weights = [make_variable(value) for value in draws(0)]
    optimizer = getattr(module, name)(learning_rate=0.01)
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(*gradients: tf.Tensor) -> tf.Tensor:
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        # Only graphs with a product are planned.
        return tf.matmul(gradients[0], gradients[0], transpose_b=True)

    steps = [[tf.constant(value) for value in draws(1 + i)] for i in range(STEPS)]
    graphs = executed_graphs(lambda: step(*steps[0]))
    for gradients in steps[1:]:
        step(*gradients)
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    values = [np.asarray(tf.convert_to_tensor(v)) for v in (*weights, *variables)]
    return values, sum(len(graph.node) for graph in graphs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCALAR_NODES)
def test_scalars_are_computed_once_and_weights_and_slots_keep_their_bits(
    kind: str, name: str
) -> None:
    if (kind, name) == ("tf_keras", "Lamb"):
        pytest.skip("tf_keras has no Lamb")
    enable(fuse="off")
    before, many = trained(kind, name)
    tf_amp.disable()
    enable(fuse=FUSED)
    after, few = trained(kind, name)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert many - few >= SCALAR_NODES[name] * (len(SHAPES) - 1)


def test_a_graph_stays_where_updates_share_no_arithmetic() -> None:
    enable(fuse="off")
    _, many = trained("Keras 3", "SGD")
    tf_amp.disable()
    enable(fuse=FUSED)
    assert trained("Keras 3", "SGD")[1] == many


# What a program computes of a counter between its writes, and what that must come to.
def between_assignments(counter: tf.Variable) -> Iterator[tf.Tensor]:
    for _ in range(2):
        yield from many_of(counter)
        counter.assign_add(1.0)


def in_a_loop(counter: tf.Variable) -> Iterator[tf.Tensor]:
    def body(step: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total += tf.add_n(list(many_of(counter)))
        counter.assign_add(1.0)
        return step + 1, total + tf.add_n(list(many_of(counter)))

    yield from many_of(counter)
    yield tf.while_loop(lambda step, _: step < 3, body, (0, 0.0))[1]


def in_branches(counter: tf.Variable) -> Iterator[tf.Tensor]:
    def written() -> tf.Tensor:
        counter.assign_add(1.0)
        return tf.add_n(list(many_of(counter)))

    yield from many_of(counter)
    yield tf.cond(counter > 0.5, written, lambda: tf.add_n(list(many_of(counter))))
    yield from many_of(counter)


def by_control_dependencies(counter: tf.Variable) -> Iterator[tf.Tensor]:
    early = list(many_of(counter))
    with tf.control_dependencies(early):
        written = counter.assign_add(1.0, read_value=False)
    with tf.control_dependencies([written]):
        yield from (*early, *many_of(counter))


def by_a_function(counter: tf.Variable) -> Iterator[tf.Tensor]:
    @tf.function(experimental_attributes={"_noinline": True})
    def write(handle: tf.Tensor) -> None:
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=1.0)

    yield from many_of(counter)
    write(counter.handle)
    yield from many_of(counter)


def by_python(counter: tf.Variable) -> Iterator[tf.Tensor]:
    def write() -> np.float32:
        counter.assign_add(1.0)
        return np.float32(0.0)

    early = list(many_of(counter))
    with tf.control_dependencies(early):
        written = tf.py_function(write, [], tf.float32)
    with tf.control_dependencies([written]):
        yield from (*early, *many_of(counter))


WRITES = (
    between_assignments,
    in_a_loop,
    in_branches,
    by_control_dependencies,
    by_a_function,
    by_python,
)


def many_of(counter: tf.Variable) -> Iterator[tf.Tensor]:
    """Compute the same of a variable so often that it is shared."""
    for _ in range(5):
        yield tf.sqrt(tf.exp(counter.read_value() + 1.0))


@pytest.mark.parametrize("program", WRITES, ids=lambda program: program.__name__)
def test_what_is_computed_after_a_write_is_computed_of_what_was_written(
    program: Callable[[tf.Variable], Iterator[tf.Tensor]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def results() -> Sequence[np.ndarray]:
        counter = tf.Variable(1.0)

        @tf.function(autograph=False)
        def run(x: tf.Tensor) -> list[tf.Tensor]:
            return [x @ x, *program(counter)]

        return [v.numpy() for _ in range(2) for v in run(tf.ones((2, 2)))]

    expected = results()
    enable(fuse=FUSED)
    found = results()
    assert len({float(value) for value in expected[1:] if value.ndim == 0}) > 1
    np.testing.assert_equal(found, expected)
    assert re.search(r"with \d fusions? that ", capsys.readouterr().err)
