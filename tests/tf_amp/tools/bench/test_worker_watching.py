"""Steps of real programs are seen, with what they compute and execute."""

from __future__ import annotations

import json
import pathlib
import textwrap
from typing import Any

from tests.forking import run_forked

WATCHED = """
import json, pathlib, keras, numpy as np, tensorflow as tf
from tf_amp.tools.bench import worker
from tf_amp.tools.bench.journal import Journal, lines_of

journal = Journal(pathlib.Path("journal"))
worker.watch(journal)
{program}
print(json.dumps(lines_of(pathlib.Path("journal"))))
"""


def lines_written(program: str, folder: pathlib.Path) -> list[list[Any]]:
    code = WATCHED.format(program=textwrap.dedent(program))
    found: list[list[Any]] = json.loads(run_forked(code, cwd=folder).lines()[-1])
    return found


def test_batches_of_keras_are_steps_with_their_losses(tmp_path: pathlib.Path) -> None:
    lines = lines_written(
        """
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2, jit_compile=False)
        x, y = tf.ones((48, 4)), tf.ones((48, 1))
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y))
        data = tf.data.Dataset.from_tensors((x, y)).repeat(3).filter(lambda *_: True)
        model.evaluate(data, verbose=0)
        model.predict(x, batch_size=16, verbose=0)
        """,
        tmp_path,
    )
    steps = [tuple(rest) for what, *rest in lines if what == "step"]
    counts = [(kind, count) for kind, _, _, count in steps]
    # Six batches an epoch, two at a time; as many of its validation.
    epoch = [("train", 2)] * 3 + [("test", 2)] * 3
    assert counts[:12] == epoch * 2
    # Of data without a known end, the try that finds it is no step.
    assert [kind for kind, _ in counts[12:]] == ["test"] * 2 + ["predict"] * 2
    assert all(begin < end for _, begin, end, _ in steps)
    losses = [values for what, kind, *values in lines if (what, kind) == VALUES]
    assert len(losses) == 4 and all(len(values[0]) == 1 for values in losses)
    assert all(ops["total"] and not ops["low"] for *_, ops in _functions(lines))


VALUES = ("values", "train")


def test_calls_of_functions_are_seen_with_what_they_execute(
    tmp_path: pathlib.Path,
) -> None:
    lines = lines_written(
        """
        def product(x):
            low = tf.cast(x, "bfloat16")
            return tf.cast(low @ tf.ones((4, 4), "bfloat16"), x.dtype)

        mixed, plain = tf.function(product), tf.function(lambda x: tf.tanh(x))
        for _ in range(6):
            plain(mixed(tf.ones((4, 4))))
        plain(tf.ones((2, 2)))
        """,
        tmp_path,
    )
    found = _functions(lines)
    low = [(name.rpartition("_")[0], ops["low"] > 0) for *_, name, ops in found]
    assert low == [
        ("__inference_product", True),
        ("__inference_<lambda>", False),
        ("__inference_<lambda>", False),
    ]
    calls = [number for what, number, *_ in lines if what == "call"]
    assert calls == [0, 1] * 6 + [2]
    compared = [values for what, name, values in _named(lines, "values", "product")]
    assert compared == [[4.0] * 16] * 4


def _named(lines: list[list[Any]], what: str, name: str) -> list[list[Any]]:
    return [line for line in lines if line[0] == what and name in str(line[1])]


def test_a_function_that_fails_at_first_is_known_at_its_next_call(
    tmp_path: pathlib.Path,
) -> None:
    lines = lines_written(
        """
        checked = tf.function(lambda x: tf.debugging.check_numerics(x, "bad"))
        try:
            checked(tf.constant([float("nan")]))
        except tf.errors.InvalidArgumentError:
            checked(tf.constant([1.0]))
        """,
        tmp_path,
    )
    ((_, number, _, ops),) = _functions(lines)
    assert ops["total"]
    assert [line[1] for line in lines if line[0] == "call"] == [number]


def test_what_xla_compiles_is_read_from_its_definition(tmp_path: pathlib.Path) -> None:
    lines = lines_written(
        """
        @tf.function
        def inner(x):
            return tf.cast(tf.cast(x, "float16") * 2.0, x.dtype)

        compiled = tf.function(lambda x: inner(x) + 1.0, jit_compile=True)
        compiled(tf.ones((4,)))
        """,
        tmp_path,
    )
    ((*_, ops),) = _functions(lines)
    assert ops["low"] and ops["casts"] == 2


def test_runs_of_a_session_are_calls(tmp_path: pathlib.Path) -> None:
    lines = lines_written(
        """
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder("float32", (2, 2), name="x")
            low = tf.cast(x, "bfloat16")
            product = tf.cast(low @ low, "float32", name="product")
            for _ in range(5):
                session.run({"it": [product], "op": product.op}, {x: np.ones((2, 2))})
            own = tf.compat.v1.RunOptions()
            session.run(x, {x: np.ones((2, 2))}, options=own)
        """,
        tmp_path,
    )
    functions = [(name, ops and ops["low"]) for _, _, name, ops in _functions(lines)]
    assert [name for name, _ in functions] == ["product, product"] * 3 + ["x"]
    assert all(low for _, low in functions[:3]) and functions[3][1] is None
    calls = [number for what, number, *_ in lines if what == "call"]
    assert calls == [0, 1, 1, 2, 2, 3]
    compared = [values for _, _, values in _named(lines, "values", "product")]
    assert compared == [[2.0] * 4] * 4


def _functions(lines: list[list[Any]]) -> list[list[Any]]:
    return [line for line in lines if line[0] == "function"]


def test_both_instances_of_a_compared_function_are_told_apart(
    tmp_path: pathlib.Path,
) -> None:
    lines = lines_written(
        """
        import tf_amp
        from tf_amp._tensorflow_private import functions
        from tensorflow.python.eager import context

        tf_amp.enable(opt_level="O2")
        product = tf.function(lambda x: x @ x)
        product(tf.ones((64, 64)))
        with functions.in_instance(context.context(), "another"):
            product(tf.ones((64, 64)))
        product(tf.ones((64, 64)))
        """,
        tmp_path,
    )
    first, second = _functions(lines)
    assert first[2] == second[2] and first[3]["low"]
    assert [number for what, number, *_ in lines if what == "call"] == [0, 1, 0]
