"""What a program does beside its values, and in which order, 16 bits do not change.

Weights are multiples of the unit matrix and inputs ones, which 16 bits hold: results
are equal to the last bit wherever the same reads and writes happen in the same order.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.pipeline import Rewrite
from tests.equivalence import Baseline
from tests.programs import Program, run, run_with_grappler, with_state
from tests.rewriters import settings_of
from tests.sketch import Sketch, sketch
from tests.soundness import casts_down, ops_with_dtype

UNIT = np.eye(4, dtype=np.float32)
ONES = np.ones((2, 4), np.float32)


def assert_same(
    program: Program, products: int | None = None, *, capture: bool = False
) -> Rewrite:
    """Check that all results are what they were, with so many products in 16 bits.

    Also after TensorFlow's own optimizers, which come once more behind the pass, and
    may read a ref variable at another time themselves. Any number of products but none
    will do where none is named.
    """
    baseline = Baseline.from_program(program, capture=capture)
    rewrite = baseline.rewrite(settings_of("bfloat16", "O2"))
    low = ops_with_dtype(rewrite.graph_def, "bfloat16")["MatMul"]
    assert low == products or (products is None and low)
    given = baseline.captured
    before, after = (
        dataclasses.replace(
            given, graph_def=with_state(graph_def, given, baseline.original)
        )
        for graph_def in (given.graph_def, rewrite.graph_def)
    )
    np.testing.assert_equal(run(after.graph_def, after), run(before.graph_def, before))
    np.testing.assert_equal(run_with_grappler(after), run_with_grappler(before))
    return rewrite


def ref_variable(value: np.ndarray, name: str = "w") -> tf.Variable:
    return tf.compat.v1.Variable(value, use_resource=False, name=name)


def casts_of(rewrite: Rewrite, variable: str) -> list[tf.compat.v1.NodeDef]:
    names = (variable, f"{variable}/read")
    return [node for node in casts_down(rewrite.graph_def) if node.input[0] in names]


def small_images(s: Sketch) -> tf.Tensor:
    return s.feed_value(ONES.astype(np.uint8), "images")


def test_a_counter_runs_on_whose_control_edge_ends_at_a_cast() -> None:
    with sketch() as s:
        counter, images = ref_variable(np.int32(0), "counter"), small_images(s)
        with tf.control_dependencies([counter.assign_add(1)]):
            images = tf.cast(images, tf.float32)
        program = s.program(tf.sin(tf.matmul(images, UNIT)), steps=3)
    assert_same(program, 1)


@pytest.mark.parametrize("dtype", [tf.uint8, tf.bfloat16])
def test_an_assertion_raises_whose_control_edge_ends_at_a_cast(dtype: tf.DType) -> None:
    with sketch() as s:
        given = tf.cast(small_images(s), dtype)
        largest = tf.reduce_max(tf.cast(given, tf.int32))
        with tf.control_dependencies([tf.debugging.Assert(largest < 1, [largest])]):
            images = tf.cast(given, tf.float32)
        program = s.program(tf.sin(tf.matmul(images, UNIT)))
    captured = with_state(program.graph_def, program, program.graph_def)
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        run(captured, program)
    rewrite = Baseline(program, captured, [], program, {}).rewrite(
        settings_of("bfloat16", "O2")
    )
    assert ops_with_dtype(rewrite.graph_def, "bfloat16")["MatMul"] == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        run(rewrite.graph_def, program)


def test_a_cast_that_waits_for_nothing_is_still_read_past() -> None:
    with sketch() as s:
        images = tf.cast(small_images(s), tf.float32)
        program = s.program(tf.sin(tf.matmul(images, UNIT)))
    rewrite = assert_same(program, 1)
    casts = [n for n in rewrite.graph_def.node if n.input[:1] == ["images"]]
    assert sorted(n.attr["DstT"].type for n in casts) == [tf.float32, tf.bfloat16]


def test_an_absorbed_cast_still_waits_for_a_counter() -> None:
    with sketch() as s:
        counter = ref_variable(np.int32(0), "counter")
        product = tf.matmul(s.feed_value(ONES, "x"), UNIT)
        with tf.control_dependencies([counter.assign_add(1)]):
            low = tf.cast(product, tf.bfloat16)
            wide = tf.cast(product, tf.float64)
        program = s.program(tf.cast(low, tf.float32) * 2.0, tf.sin(wide), steps=2)
    assert_same(program, 1, capture=True)


def test_a_constant_made_beforehand_still_waits_for_a_counter() -> None:
    with sketch() as s:
        counter = ref_variable(np.int32(0), "counter")
        with tf.control_dependencies([counter.assign_add(1)]):
            weights = tf.constant(UNIT)
        program = s.program(tf.sin(tf.matmul(s.feed_value(ONES, "x"), weights)))
    assert_same(program, 1)


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("capture", [False, True], ids=["given", "inlined"])
def test_a_loop_reads_what_it_has_just_written_to_a_ref_variable(
    capture: bool, is_moved: bool
) -> None:
    unit = UNIT.reshape(2, 8) if is_moved else UNIT
    with sketch() as s:
        w = ref_variable(unit)
        weights = tf.reshape(w, [4, 4]) if is_moved else w

        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            y = tf.matmul(y, weights)
            with tf.control_dependencies([y]):
                written = w.assign_add(unit)
            with tf.control_dependencies([written]):
                return i + 1, tf.identity(y)

        start = [tf.constant(0), s.feed_value(ONES, "x")]
        _, y = tf.while_loop(lambda i, _: i < 3, body, start)
        program = s.program(tf.negative(y))
    assert_same(program, 1, capture=capture)


def test_a_ref_variable_trains_within_a_loop() -> None:
    with sketch() as s:
        w = ref_variable(UNIT)
        x = s.feed_value(ONES, "x")

        def body(i: tf.Tensor) -> tf.Tensor:
            product = tf.matmul(x, w)
            slope = tf.matmul(x, product, transpose_a=True)
            with tf.control_dependencies([w.assign_sub(slope * 0.5)]):
                return i + 1

        steps = tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
        program = s.program(tf.negative(steps[0]))
    assert_same(program, 2)


def test_reads_of_a_ref_variable_before_and_after_a_write_share_no_cast() -> None:
    with sketch() as s:
        w, x = ref_variable(UNIT), s.feed_value(ONES, "x")
        first = tf.matmul(x, w)
        with tf.control_dependencies([first]):
            written = w.assign_add(UNIT)
        with tf.control_dependencies([written]):
            again = tf.identity(x)
        second = tf.matmul(again, w)
        program = s.program(tf.negative(first), tf.negative(second))
    assert len(casts_of(assert_same(program, 2), "w")) == 2


def test_reads_of_a_ref_variable_before_its_update_share_a_cast() -> None:
    with sketch() as s:
        w, x = ref_variable(UNIT), s.feed_value(ONES, "x")
        y = tf.matmul(tf.matmul(x, w), w)
        with tf.control_dependencies([y]):
            written = w.assign_add(UNIT)
        program = s.program(tf.negative(y), targets=[written.op], steps=2)
    assert len(casts_of(assert_same(program, 2), "w")) == 1


def test_a_training_step_on_ref_variables_casts_each_weight_once() -> None:
    with sketch() as s:
        w, v = ref_variable(UNIT, "w"), ref_variable(UNIT, "v")
        y = tf.matmul(tf.nn.relu(tf.matmul(s.feed_value(ONES, "x"), w)), v)
        loss = tf.reduce_mean(tf.square(y))
        step = tf.compat.v1.train.GradientDescentOptimizer(0.5).minimize(loss)
        program = s.program(loss, targets=[step])
    rewrite = Baseline.from_program(program).rewrite(settings_of("bfloat16", "O2"))
    assert ops_with_dtype(rewrite.graph_def, "bfloat16")["MatMul"] == 5
    assert len(casts_of(rewrite, "w")) == len(casts_of(rewrite, "v")) == 1


def test_an_integer_ref_variable_is_cast_before_it_counts_on() -> None:
    with sketch() as s:
        counter = ref_variable(np.int8([[1, 0], [0, 1]]), "counter")
        counts = tf.cast(counter, tf.float32)
        with tf.control_dependencies([counts]):
            written = counter.assign(counter + np.int8(1))
        with tf.control_dependencies([written]):
            late = tf.identity(s.feed_value(np.ones((2, 2), np.float32), "x"))
        program = s.program(tf.negative(tf.matmul(late, counts)), steps=2)
    made = assert_same(program, 1).graph_def
    casts = [node for node in made.node if node.attr["SrcT"].type == tf.int8]
    assert [node.attr["DstT"].type for node in casts] == [tf.float32]


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_a_counter_in_a_loop_runs_on_that_a_read_waits_for(v2: bool) -> None:
    with sketch(v2_control_flow=v2) as s:
        w = tf.compat.v1.Variable(UNIT, use_resource=True)
        counter = tf.compat.v1.Variable(0, use_resource=True)

        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([counter.assign_add(1)]):
                read = w.read_value()
            return i + 1, tf.matmul(y, read)

        start = [tf.constant(0), s.feed_value(ONES, "x")]
        _, y = tf.while_loop(lambda i, _: i < 3, body, start)
        program = s.program(tf.negative(y))
    assert_same(program, 1, capture=True)


@pytest.mark.parametrize("is_resource", [False, True])
def test_a_branch_that_writes_a_variable_comes_before_the_reads_behind_it(
    is_resource: bool,
) -> None:
    with sketch() as s:
        w = tf.compat.v1.Variable(UNIT, use_resource=is_resource)
        y = tf.matmul(s.feed_value(ONES, "x"), w)
        positive = s.feed_value(np.float32(1), "n") > 0
        with tf.control_dependencies([y]):
            latest = tf.cond(
                positive,
                lambda: tf.identity(w.assign_add(UNIT)),
                lambda: tf.identity(w.read_value()),
            )
        with tf.control_dependencies([latest]):
            z = tf.matmul(tf.identity(y), w.read_value())
        program = s.program(-tf.matmul(y, latest), -z, steps=2)
    assert_same(program, 3, capture=True)


@pytest.mark.parametrize("is_resource", [False, True])
def test_a_loop_reads_what_a_loop_within_it_has_written(is_resource: bool) -> None:
    with sketch() as s:
        w = tf.compat.v1.Variable(UNIT, use_resource=is_resource)

        def inner(j: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([y]):
                written = w.assign_add(UNIT)
            with tf.control_dependencies([written]):
                return j + 1, tf.identity(y)

        def outer(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # An iteration may begin before the loop within the last one has ended.
            with tf.control_dependencies([y]):
                y = tf.matmul(y, w)
            return i + 1, tf.while_loop(lambda j, _: j < 2, inner, [0, y])[1]

        start = [tf.constant(0), s.feed_value(ONES, "x")]
        _, y = tf.while_loop(lambda i, _: i < 2, outer, start)
        program = s.program(tf.negative(y))
    assert_same(program, 1, capture=True)


def test_an_array_in_a_loop_holds_what_was_read_before_each_write() -> None:
    with sketch() as s:
        w, x = ref_variable(UNIT), s.feed_value(ONES, "x")

        def body(
            i: tf.Tensor, y: tf.Tensor, seen: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
            seen = seen.write(i, tf.matmul(y, w))
            y = seen.read(i)
            with tf.control_dependencies([y]):
                written = w.assign_add(UNIT)
            with tf.control_dependencies([written]):
                return i + 1, tf.identity(y), seen

        seen = tf.TensorArray(
            tf.float32, 3, clear_after_read=False, element_shape=[2, 4]
        )
        start = [tf.constant(0), x, seen]
        _, _, seen = tf.while_loop(lambda i, *_: i < 3, body, start)
        rows = tf.reshape(seen.stack(), [6, 4])
        program = s.program(tf.negative(tf.matmul(rows, UNIT)))
    assert_same(program, 2, capture=True)


def test_what_a_cast_waits_for_is_in_the_queue_before_it() -> None:
    with sketch() as s:
        queue = tf.queue.FIFOQueue(4, [tf.float32], [[2, 4]])
        y = tf.matmul(s.feed_value(ONES, "x"), UNIT)
        with tf.control_dependencies([queue.enqueue(y)]):
            second = queue.enqueue(y * 2)
        with tf.control_dependencies([second]):
            low = tf.cast(tf.cast(y, tf.bfloat16), tf.float32)
        with tf.control_dependencies([low]):
            z = tf.matmul(queue.dequeue(), UNIT)
        with tf.control_dependencies([z]):
            left = queue.size()
        program = s.program(tf.negative(z), tf.identity(left), steps=2)
    assert_same(program, 2, capture=True)
