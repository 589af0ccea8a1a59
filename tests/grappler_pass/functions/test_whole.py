"""A copy that XLA compiles bears the name of what it computes, and holds no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef

from grappler_pass.functions import whole

X = tf.TensorSpec([4], tf.float32)


def traced(function: Callable[..., tf.Tensor], *specs: tf.TensorSpec) -> FunctionDef:
    """Return a function as TensorFlow's runtime has it; each trace has another name."""
    concrete = tf.function(function).get_concrete_function(*specs or (X,))
    return concrete.function_def


def scaled(factor: float) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.tanh(x * factor)


def test_a_copy_is_named_by_what_it_computes() -> None:
    once, again, other = (
        whole.compiled_copies([traced(scaled(factor))])[0] for factor in (2.0, 2.0, 3.0)
    )
    assert once == again
    assert other.signature.name != once.signature.name
    retried = whole.compiled_copies([traced(scaled(2.0))], failures=1)[0]
    assert retried.signature.name != once.signature.name
    assert once.attr["_XlaMustCompile"].b


def test_functions_that_are_called_are_copied_with_it() -> None:
    inner = tf.function(scaled(2.0), experimental_attributes={"_noinline": True})
    outer = traced(lambda x: inner(x) + 1.0)
    called = inner.get_concrete_function(X).function_def
    first, second = whole.compiled_copies([outer, called])
    names = [node.attr["f"].func.name for node in first.node_def if "f" in node.attr]
    assert names == [second.signature.name] == [f"{first.signature.name}_1"]


def test_nodes_that_nothing_needs_are_left_out() -> None:
    v = tf.Variable(tf.ones([4]))

    def step(x: tf.Tensor) -> tf.Tensor:
        tf.strings.as_string(x)
        v.assign_add(x)
        return x * 2.0

    definition = traced(step)
    ops = {node.op for node in definition.node_def}
    kept = {node.op for node in whole.pruned(definition).node_def}
    assert "AsString" in ops - kept
    assert "AssignAddVariableOp" in kept


def cases() -> Iterator[tuple[str, Callable[..., tf.Tensor], str, str]]:
    yield "product", lambda x, i: x * 2.0, "", ""
    yield "rows", lambda x, i: tf.gather(x, i), "raise an error", ""
    yield "known rows", lambda x, i: x[1:3], "", ""
    yield "division", lambda x, i: i // (i - 1), "raise an error", ""
    yield "known divisor", lambda x, i: i // 3, "", ""
    yield "assertion", lambda x, i: tf.debugging.check_numerics(x, ""), *("raise",) * 2
    yield "size", lambda x, i: tf.fill([i], 1.0), *("size that depends",) * 2
    yield "size of shape", lambda x, i: tf.fill(tf.shape(x), 1.0), "", ""
    yield "noise", lambda x, i: x + tf.random.normal([4]), *("random",) * 2
    yield "callback", lambda x, i: tf.strings.as_string(x), *("not known",) * 2
    yield (
        "branch",
        lambda x, i: tf.cond(i > 0, lambda: x[:i], lambda: x),
        "raise",
        "size",
    )


@pytest.mark.parametrize(("name", "function", "on_cpu", "on_gpu"), cases())
def test_what_would_do_something_else_is_left_alone(
    name: str,
    function: Callable[..., tf.Tensor],
    on_cpu: str,
    on_gpu: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tf.function(lambda: tf.zeros([]), jit_compile=True)()
    # There is no GPU here, of whose ops TensorFlow could say which XLA knows.
    monkeypatch.setitem(whole._XLA_DEVICES, "GPU", "XLA_CPU_JIT")
    concrete = tf.function(function).get_concrete_function(
        X, tf.TensorSpec([], "int32")
    )
    callees = [each.definition for each in concrete._inference_function._children]
    found = [whole.pruned(each) for each in (concrete.function_def, *callees)]
    for device_type, why in (("CPU", on_cpu), ("GPU", on_gpu)):
        obstacle = whole.obstacle_in(found, device_type)
        assert bool(obstacle) == bool(why) and why in obstacle


def test_an_argument_whose_shape_varies_is_an_obstacle() -> None:
    tf.function(lambda: tf.zeros([]), jit_compile=True)()
    definition = traced(scaled(2.0), tf.TensorSpec([None, 4], tf.float32))
    assert "shape of its argument x" in whole.obstacle_in([definition], "CPU")


def test_a_call_is_compiled_within_a_function_and_alone() -> None:
    v = tf.Variable(tf.ones([4]))
    inner = tf.function(lambda x: v.assign_add(tf.tanh(x) * 2.0 + x) + 1.0)

    def outer(batches: Iterator[tf.Tensor]) -> tf.Tensor:
        return inner(next(batches))

    batches = iter(tf.data.Dataset.from_tensors(tf.ones([4])))
    concrete = tf.function(outer).get_concrete_function(batches)
    definition, called = concrete.function_def, inner.get_concrete_function(X)
    functions = [definition, called.function_def]
    call = whole.only_call(functions)
    assert call is not None and whole.only_call(functions[1:]) is None
    assert len(whole.argument_sources(call)) == 2
    copy = whole.compiled_copies(functions[1:])[0]
    caller, alone = whole.calling_compiled(definition, call, copy)
    of_caller, of_alone = whole.only_call([caller, copy]), alone.node_def[0]
    assert of_caller is not None
    assert of_caller.attr["f"].func.name == copy.signature.name
    assert of_caller.attr["_XlaMustCompile"].b
    assert of_caller.attr == of_alone.attr and of_caller.op == of_alone.op
    assert caller.signature.input_arg == definition.signature.input_arg
    assert alone.signature.input_arg == copy.signature.input_arg
    assert len(caller.node_def) == len(definition.node_def)


def test_a_function_that_does_more_than_it_calls_has_no_only_call() -> None:
    inner = tf.function(scaled(2.0))
    called = inner.get_concrete_function(X).function_def

    def much(x: tf.Tensor) -> tf.Tensor:
        for _ in range(9):
            x = tf.sin(x)
        return inner(x)

    for function in (much, lambda x: inner(inner(x)), lambda x: x):
        assert whole.only_call([traced(function), called]) is None


def test_only_loops_that_end_by_counting_are_called_with_zeros() -> None:
    def looping(condition: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        start = tf.constant(0)
        return lambda x: tf.while_loop(
            condition, lambda i, x: (i + 1, x * 0.5), (start, x)
        )[1]

    for condition, is_left_alone in (
        (lambda i, x: i < 9, False),
        (lambda i, x: x[0] > 0.1, True),
    ):
        concrete = tf.function(looping(condition)).get_concrete_function(X)
        callees = [each.definition for each in concrete._inference_function._children]
        found = [concrete.function_def, *callees]
        assert bool(whole.obstacle_of_zeros(found)) == is_left_alone
