"""What runs and watches the steps of one process."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest

from tests.forking import run_forked
from tests.tf_amp.compare.test_own_steps import run


@pytest.mark.parametrize("tune", ["on", "off"])
def test_what_tf_amp_compares_is_one_step_before_those_that_are_timed(tune, tmp_path):
    code = f"""
import json, pathlib
from tf_amp.tools.bench import worker
from tf_amp.tools.bench.journal import Journal, lines_of

slow, seconds = "float32", 0.2
tf_amp.enable(dtype="bfloat16", tune={tune!r})
path = pathlib.Path({str(tmp_path)!r}, "journal")
worker._run_steps(lambda: step(tf.constant(A)), Journal(path), 0.0)
print(json.dumps([rest for what, *rest in lines_of(path) if what == "step"]))
print(json.dumps([kind for what, kind, *_ in lines_of(path) if what == "values"]))
"""
    *_, steps, values = run(code, tmp_path)
    kinds, begins, ends, counts = zip(*json.loads(steps), strict=True)
    assert set(kinds) == {"own"} and json.loads(values) == ["own"] * 4
    assert len(counts) == (13 if tune == "on" else 12)
    compared = counts[1] if tune == "on" else 1
    assert counts == (1, compared, *[1] * (len(counts) - 2))
    if tune == "on":
        assert compared > 6 and ends[1] - begins[1] > 0.2
    assert max(e - b for b, e in zip(begins[2:], ends[2:], strict=True)) < 0.2


MODELS = """
import numpy as np, tensorflow as tf

def model_of(batch, *, rows=64, compiled=True):
    import keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    if compiled:
        model.compile("sgd", "mse")
    return model, np.ones((rows, 4), "float32")

def keras_pair(batch): return model_of(batch)
def keras_triple(batch): return (*model_of(batch), np.zeros((64, 1), "float32"))
def too_little(batch): return model_of(batch, rows=2)
def step(batch): return lambda: tf.ones((batch,))
def of_mode(batch, mode): return lambda: tf.ones((batch, 1 + (mode == "train")))
def number(batch): return 3
def pair(batch): return 1, 2
constant = 3
"""

ASKED = """
import sys; sys.path.insert(0, ".")
import numpy as np, tensorflow as tf
from tf_amp.errors import AmpError
from tf_amp.tools.bench.worker import step_of_function, step_of_saved_model
def shape(asked):
    try:
        return np.shape(asked()())
    except AmpError as error:
        return str(error)
{program}
"""

ANSWERS = {
    "models:step train": "(8,)",
    "models:of_mode train": "(8, 2)",
    "models:of_mode infer": "(8, 1)",
    "models:keras_triple train": "()",
    "models:keras_pair infer": "(8, 1)",
    "models:keras_pair train": "returned no y",
    "models:too_little infer": "returned 2 examples for 8",
    "models:number train": "returned int; wanted is a callable",
    "models:pair train": "returned a tuple with int",
    "models:constant train": "has no such function",
    "models:missing train": "has no such function",
    "nowhere.at.all:step train": "there is no module nowhere",
}


def printed(program, folder):
    (folder / "models.py").write_text(MODELS)
    return run_forked(ASKED.format(program=program), cwd=folder).lines()


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return what each asked step computes, or why there is none, from one process."""
    program = """
for asked in ASKED:
    name, mode = asked.split()
    print(f"{asked}={shape(lambda: step_of_function(name, 8, mode))}")
""".replace("ASKED", repr([*ANSWERS]))
    lines = printed(program, tmp_path_factory.mktemp("models"))
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(("asked", "answer"), ANSWERS.items())
def test_a_function_makes_a_step_or_it_is_said_why_not(answers, asked, answer):
    assert answer in answers[asked]


def test_a_signature_is_run_on_made_up_batches(tmp_path):
    program = """
model = tf.Module()
model.weight = tf.Variable(tf.ones((4, 2)))
def score(x, ids): return {"out": x @ model.weight, "ids": ids}
ids = tf.TensorSpec((), tf.int32, name="ids")
def named(size):
    x = tf.TensorSpec((size, 4), name="x")
    return tf.function(score).get_concrete_function(x, ids)
tf.saved_model.save(model, "one", {"open": named(None)})
tf.saved_model.save(model, "two", {"open": named(None), "three": named(3)})
tf.saved_model.save(model, "none", {})
def asked(folder, signature):
    def ask():
        step = step_of_saved_model(folder, signature, 8)
        return lambda: step()["out"]
    return shape(ask)
for each in (("one", None), ("two", "open"), ("two", None), ("two", "three"),
             ("two", "four"), ("none", None)):
    print(asked(*each))
"""
    found = printed(program, tmp_path)
    assert found[:2] == ["(8, 2)", "(8, 2)"]
    assert "several signatures; --signature open, three?" in found[2]
    assert "x: float32 [3, 4] has a batch size of its own" in found[3]
    assert "no signature 'four'; it has open, three" in found[4]
    assert "has no signatures to run" in found[5]


POLICIES = """
print(keras.config.dtype_policy().name, tf_keras.mixed_precision.global_policy().name)
"""
OPTIONS = """
options = tf.config.optimizer.get_experimental_options()
print(options.get("auto_mixed_precision_onednn_bfloat16"))
"""


@pytest.mark.parametrize(
    ("method", "shown", "printed"),
    [
        ("float32", POLICIES, "float32 float32"),
        ("keras", POLICIES, "mixed_bfloat16 mixed_bfloat16"),
        ("tensorflow", OPTIONS, "True"),
        ("tf-amp:O2", OPTIONS, "None"),
    ],
)
def test_a_method_is_switched_on_as_its_documentation_says(method, shown, printed):
    code = f"""
from tf_amp.tools.bench import worker
worker.switch_on({method!r})
import keras, tensorflow as tf, tf_keras
{shown}
"""
    assert printed in run_forked(code).lines()[-1]


def test_settings_of_a_method_go_before_the_users():
    code = """
from tf_amp.tools.bench import worker
worker.switch_on("tf-amp:DTYPE=bfloat16+TUNE=off")
from tf_amp.config.amp_config import AmpConfig
config = AmpConfig.from_env()
print(config.enabled, config.dtype, config.tune, config.exclude)
"""
    users = {
        "TF_ENABLE_AUTO_MIXED_PRECISION": "float16",
        "TF_AMP_TUNE": "on",
        "TF_AMP_EXCLUDE": "head/",
    }
    printed = run_forked(code, env=users).lines()
    assert printed == ["True bfloat16 off ('head/',)"]


WATCHED = """
import json, pathlib, keras, numpy as np, tensorflow as tf
from tf_amp.tools.bench import worker
from tf_amp.tools.bench.journal import Journal, lines_of

journal = Journal(pathlib.Path("journal"))
worker.watch(journal)
{program}
print(json.dumps(lines_of(pathlib.Path("journal"))))
"""


def lines_written(program, folder):
    code = WATCHED.format(program=textwrap.dedent(program))
    found: list[list[Any]] = json.loads(run_forked(code, cwd=folder).lines()[-1])
    return found


def test_batches_of_keras_are_steps_with_their_losses(tmp_path):
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


def test_calls_of_functions_are_seen_with_what_they_execute(tmp_path):
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


def _named(lines, what, name):
    return [line for line in lines if line[0] == what and name in str(line[1])]


def test_a_function_that_fails_at_first_is_known_at_its_next_call(tmp_path):
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


def test_what_xla_compiles_is_read_from_its_definition(tmp_path):
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


def test_runs_of_a_session_are_calls(tmp_path):
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


def _functions(lines):
    return [line for line in lines if line[0] == "function"]


def test_both_instances_of_a_compared_function_are_told_apart(tmp_path):
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
