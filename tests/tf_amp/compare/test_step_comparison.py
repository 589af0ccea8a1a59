"""Real calls tell whether 16 bits are faster, and the loser is not called again."""

from __future__ import annotations

import pathlib

import pytest

from tests.forking import run_tuned
from tf_amp.compare.own_steps import FLOAT32, StepComparison, Steps

# Predictions promise a gain that is in doubt; which instance is slow is injected: the
# constant `delay` of one instance says how long a function in its graph sleeps.
PRELUDE = """
import dataclasses
import sys
import time
import numpy as np
import tensorflow as tf
import tf_amp
from absl import logging
from grappler_pass.costs import CostModel
from tensorflow.core.framework.graph_pb2 import GraphDef
from tf_amp.rewriting import arriving_graphs as rewriter
from tf_amp.compare import alternation, call_sites

# Calls are not spread, so that comparisons are short however slow an instance is.
alternation._MOST_EXCESS = float("inf")
logging.set_verbosity(logging.INFO)
logging.use_absl_handler()
price = CostModel.price

def believed(self, call, dtype):
    float32 = price(self, call, "float32")
    share = 1.0 if dtype == "float32" else 0.4
    return float32._replace(seconds=share * float32.seconds, error=0.35)

CostModel.price = believed
slow, seconds = None, 0.1
rewrite = rewriter.rewrite_graph

def slowing(data, item):
    rewritten = rewrite(data, item)
    entry = call_sites.current()
    is_float32 = entry.is_float32 or entry.is_waiting
    label = "float32" if is_float32 else ""
    if label != slow:
        return rewritten
    graph_def = GraphDef.FromString(rewritten or data)
    for node in graph_def.node:
        if node.op == "Const" and node.name.endswith("delay"):
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([seconds]))
    return graph_def.SerializeToString()

rewriter.rewrite_graph = slowing

def wait(x, delay):
    time.sleep(float(delay[0]))
    return x

A = np.full([384, 384], 1 / 256, np.float32)
count = tf.Variable(0)

@tf.function
def step(x):
    x = tf.numpy_function(wait, [x, tf.constant([0.0], name="delay")], tf.float32)
    x.set_shape([384, 384])
    count.assign_add(1)
    return (((x @ A) @ A) @ A) @ A

def labels_of(calls, function=step, data=A):
    labels = []
    called = call_sites.call_as

    def noting(name, label, *args):
        labels.append(label)
        return called(name, label, *args)

    call_sites.call_as = noting
    try:
        for _ in range(calls):
            function(tf.constant(data))
    finally:
        call_sites.call_as = called
    return labels
"""


def run(code: str, cache: pathlib.Path, **env: str) -> list[str]:
    """Return what a program prints."""
    return run_tuned(PRELUDE + code, cache, **env)


@pytest.mark.parametrize("slow", ["mixed", "float32"])
def test_the_slow_instance_is_not_called_again_nor_in_the_next_process(
    slow: str, tmp_path: pathlib.Path
) -> None:
    code = f"""
slow = {"" if slow == "mixed" else "float32"!r}
tf_amp.enable(dtype="bfloat16")
labels = labels_of(60)
print("float32" in labels[:30], set(labels[-20:]), len(tf_amp.plans()))
tf_amp.disable()
print(count.numpy(), set(labels_of(3)))
"""
    first, second = (run(code, tmp_path)[-2:] for _ in range(2))
    winner, plans = ("float32", 0) if slow == "mixed" else ("", 1)
    assert first == [f"True {{{winner!r}}} {plans}", f"60 {{{winner!r}}}"]
    # What is float32 from the start has one instance.
    assert second == [f"False {{''}} {plans}", "60 {''}"]


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("broken", ["mixed", "float32"])
def test_an_error_of_one_instance_leaves_the_job_running_on_the_other(
    broken: str, first: int, tmp_path: pathlib.Path
) -> None:
    lines = run(
        f"""
slow, seconds = {"" if broken == "mixed" else "float32"!r}, -1.0
calls_of_broken = []

def wait(x, delay):
    calls_of_broken.extend([1] * int(delay[0] < 0))
    if delay[0] < 0 and len(calls_of_broken) >= {first}:
        raise MemoryError("planted")
    return x

tf_amp.enable(dtype="bfloat16")
labels = labels_of(30)
print(set(labels[-4:]), count.numpy() >= 30, len(tf_amp.plans()))
""",
        tmp_path,
    )
    winner, plans = ("float32", 0) if broken == "mixed" else ("", 1)
    assert lines[-1] == f"{{{winner!r}}} True {plans}"


def test_errors_of_the_program_are_its_own(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
calls = []

def wait(x, delay):
    calls.append(1)
    if len(calls) % 2 == 0:
        raise ValueError("of the program")
    return x

tf_amp.enable(dtype="bfloat16")
raised = 0
for _ in range(40):
    try:
        step(tf.constant(A))
    except tf.errors.InvalidArgumentError:
        raised += 1
print(raised, len(calls))
""",
        tmp_path,
    )
    assert lines[-1] == "20 40"


def test_each_trace_is_compared_by_itself_and_little_called_ones_are_not(
    tmp_path: pathlib.Path,
) -> None:
    lines = run(
        """
tf_amp.enable(dtype="bfloat16")

@tf.function(reduce_retracing=False)
def other(x):
    return (((x @ A) @ A) @ A) @ A

for rows in (384, 512):
    print("float32" in labels_of(80, other, np.ones([rows, 384], np.float32)))
print("float32" in labels_of(4))
""",
        tmp_path,
    )
    assert lines[-3:] == ["True", "True", "False"]


def test_what_may_well_gain_nothing_begins_in_float32(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
CostModel.price = lambda *args: believed(*args)._replace(error=3.0)
plain = step(tf.constant(A)).numpy()
tf_amp.enable(dtype="bfloat16")
slow, seconds = "float32", 0.03

@tf.function
def again(x):
    return step.python_function(x)

equal = [(again(tf.constant(A)).numpy() == plain).all() for _ in range(20)]
print(all(equal), len(tf_amp.plans()))
labels = labels_of(50, again)
print(labels[:2], sorted(set(labels)), set(labels[-20:]))
print(tf_amp.plans()[0].summary().rpartition("; ")[2])
""",
        tmp_path,
    )
    assert lines[-3] == "True 0"
    assert lines[-2] == "['16 bits', '16 bits'] ['', '16 bits'] {'16 bits'}"
    assert lines[-1].startswith("in doubt: ")


def test_of_equal_instances_float32_stays(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
rewriter.rewrite_graph = lambda data, item: rewrite(data, item) and None
tf_amp.enable(dtype="bfloat16")
wait = lambda x, delay: (time.sleep(0.02), x)[1]
labels = labels_of(30)
while len(set(labels[-20:])) > 1:
    labels += labels_of(20)
print(set(labels[:30]) >= {"", "float32"}, set(labels[-20:]), len(tf_amp.plans()))
""",
        tmp_path,
    )
    assert lines[-1] == "True {'float32'} 0"


PATHS = """
import re
import keras
x = np.random.default_rng(0).normal(size=(1920, 384)).astype(np.float32)

def compiled(**options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(384) for _ in range(3)])
    model.compile("sgd", "mse", jit_compile=False, **options)
    return model

def fitted(**options):
    model = compiled(**options)
    found = model.fit(x, x, batch_size=64, epochs=3, verbose=0, shuffle=False)
    assert model.optimizer.iterations.numpy() == 90
    return found.history["loss"]

def evaluated():
    return compiled().evaluate(x, x, batch_size=32, verbose=0)

def predicted():
    return compiled().predict(x, batch_size=32, verbose=0)

def trained_on_batches():
    model = compiled()
    return [model.train_on_batch(x[:64], x[:64]) for _ in range(60)][-1]

def restored():
    model = compiled()
    model.build((None, 384))
    tf.saved_model.save(model, folder)
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    return [next(iter(serve(tf.constant(x[:64])).values())) for _ in range(60)][-1]

def under_a_tape():
    weight = tf.Variable(A)

    @tf.function
    def product(x):
        return (((x @ weight) @ A) @ A) @ A

    for _ in range(60):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(product(tf.constant(A)) ** 2)
        weight.assign_sub(1e-6 * tape.gradient(loss, weight))
    return weight

plain = np.array({path})
tf_amp.enable(dtype="bfloat16")
compared, called = set(), call_sites.call_as

def noting(callee, label, *args):
    if label:
        words = re.findall("forward|backward|[a-z]+(?:_[a-z]+)+|product", callee.name)
        compared.add(" ".join(words).removeprefix("inference_"))
    return called(callee, label, *args)

call_sites.call_as = noting
found = np.array({path})
print(np.abs(found - plain).max() < 0.01 * np.abs(plain).max())
print(", ".join(sorted(compared)))
"""


@pytest.mark.parametrize(
    ("path", "compared"),
    [
        ("fitted()", "multi_step_on_iterator"),
        ("fitted(steps_per_execution=3)", "multi_step_on_iterator"),
        ("evaluated()", "multi_step_on_iterator"),
        ("predicted()", "one_step_on_data_distributed"),
        ("trained_on_batches()", "one_step_on_data"),
        ("restored()", "signature_wrapper_serving_default"),
        ("under_a_tape()", "backward product, forward product"),
    ],
)
def test_results_through_a_comparison_are_those_of_float32(
    path: str, compared: str, tmp_path: pathlib.Path
) -> None:
    folder = str(tmp_path / "saved")
    code = f"folder = {folder!r}\n" + PATHS.replace("{path}", path)
    lines = run(code, tmp_path)
    assert lines[-2:] == ["True", compared]


def test_threads_may_call_a_function_while_it_is_compared(
    tmp_path: pathlib.Path,
) -> None:
    lines = run(
        """
import concurrent.futures
tf_amp.enable(dtype="bfloat16")
step(tf.constant(A))
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda _: step(tf.constant(A)).numpy()[0, 0], range(60)))
print(len(results), count.numpy(), max(results) < 1.05 * min(results))
""",
        tmp_path,
    )
    assert lines[-1] == "60 61 True"


def test_under_determinism_and_without_tuning_nothing_is_compared(
    tmp_path: pathlib.Path,
) -> None:
    code = """
{before}
tf_amp.enable(dtype="bfloat16")
print(set(labels_of(20)))
"""
    before = "tf.keras.utils.set_random_seed(1); "
    before += "tf.config.experimental.enable_op_determinism()"
    assert run(code.format(before=before), tmp_path)[-1] == "{''}"
    assert run(code.format(before=""), tmp_path, TF_AMP_TUNE="off")[-1] == "{''}"


def test_what_is_not_remembered_is_said_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(is_faster: bool, steps: Steps) -> None:
        raise OSError("planted")

    comparison = StepComparison(name="__inference_step_7")
    comparison.when_decided(fail)
    assert comparison.failed(lambda label: label) == FLOAT32
    assert "__inference_step_7" in caplog.text
    assert "OSError: planted" in caplog.text and "TF_AMP_TUNE=off" in caplog.text


DROPOUT = """
CostModel.price = lambda *args: believed(*args)._replace(error={error})
{seed}

def masks():
    found = []

    @tf.function
    def product(x):
        return 0.0 * ((((x @ A) @ A) @ A) @ A) + tf.nn.dropout(tf.ones_like(x), 0.5)

    labels = labels_of(40, lambda x: found.append(product(x).numpy()))
    return found, sorted(set(labels))

plain, _ = masks()
{seed}
tf_amp.enable(dtype="bfloat16")
found, labels = masks()
equal = all((a == b).all() for a, b in zip(plain, found, strict=True))
print(equal, labels, len(tf_amp.plans()))
"""


@pytest.mark.parametrize(("error", "plans"), [(0.5, 1), (3.0, 0)])
def test_random_numbers_under_a_seed_are_the_same_since_nothing_is_compared(
    error: float, plans: int, tmp_path: pathlib.Path
) -> None:
    code = DROPOUT.format(error=error, seed="tf.random.set_seed(1)")
    assert run(code, tmp_path)[-1] == f"True [''] {plans}"


def test_fresh_random_numbers_may_come_from_either_instance(
    tmp_path: pathlib.Path,
) -> None:
    lines = run(DROPOUT.format(error=0.5, seed=""), tmp_path)
    assert lines[-1].startswith("False ['', 'float32']")
