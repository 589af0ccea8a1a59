"""The lines that a process prints on stderr, but for `programs_of_notices.txt`."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

from grappler_pass.planning.plan import Plan
from tests.forking import run_forked
from tests.fresh_process import run_interpreter
from tests.printed_programs import beginning
from tests.processes import run_python
from tf_amp.compare.alternation import Verdict
from tf_amp.rewriting import notices

TEXTS = pathlib.Path(__file__).with_name("programs_of_notices.txt")
TRAINING = beginning(TEXTS, "TRAINING")
ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
GAINS = {**ON, "TF_AMP_DEVICE_PROFILE": "cpu-amx-bf16"}
OWN_PASS = """
import tensorflow as tf
options = {"auto_mixed_precision_onednn_bfloat16": True}
tf.config.optimizer.set_experimental_options(options)
x = tf.random.normal((256, 256))

@tf.function
def step():
    return tf.nn.relu(tf.nn.relu(x @ x) @ x) @ x

step()
"""
# XLA makes two kernels of it.
SINES = """
import tensorflow as tf
x, w = tf.ones((8192, 64)), tf.ones((64, 2048))

@tf.function
def step():
    y = x @ w
    for _ in range(20):
        y = tf.sin(y) * y
    return y

step()
"""
CPU_FLAGS = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")


def lines_of(code: str, env: dict[str, str]) -> list[str]:
    """Run a program and return what it says of itself on stderr."""
    outcome = run_forked(code, env=env)
    outcome.lines()
    return re.findall("^tf-amp: (.*)$", outcome.err, re.MULTILINE)


def test_how_lines_are_hidden_is_said_once_on_a_machine(tmp_path: pathlib.Path) -> None:
    hint = "; TF_AMP_VERBOSE=0 hides such lines (AMP101)"
    given = {**GAINS, "TF_AMP_CACHE": str(tmp_path / "new")}
    (first,), (second,) = (lines_of(f"{TRAINING}step()\n", given) for _ in range(2))
    assert first.endswith(hint) and second.endswith("x (AMP101)")
    # Where nothing can be kept, each process would say it.
    nowhere = {**given, "TF_AMP_CACHE": "/proc/nowhere"}
    lines = lines_of(f"{TRAINING}step()\n", nowhere)
    assert not [line for line in lines if "hides" in line]


def test_what_xla_would_take_is_said_unless_own_steps_are_to_find_out() -> None:
    on_gpu = {**ON, "TF_AMP_DEVICE_PROFILE": "h100"}
    (line,) = lines_of(SINES, on_gpu)
    assert "; compiled by XLA (jit_compile=True) a step is expected to take" in line
    lines = lines_of(SINES, {**on_gpu, "TF_AMP_COMPILE": "clusters"})
    assert "jit_compile" not in " ".join(lines)


def test_exclusions_of_the_environment_that_match_nothing_are_named() -> None:
    given = {**GAINS, "TF_AMP_EXCLUDE": "Relu no_such_name"}
    _, line = lines_of(f"{TRAINING}step()\n", given)
    assert line.startswith("exclude: 'no_such_name' matches no operation of the graphs")


def test_lines_are_the_same_at_every_log_level_and_name_the_script_with_its_arguments(
    tmp_path: pathlib.Path,
) -> None:
    script = tmp_path / "my job.py"
    script.write_text(f"{TRAINING}step()\n")
    env = {**ON, "TF_AMP_DEVICE_PROFILE": "cpu-generic"}
    quiet, loud = ({**env, "TF_CPP_MIN_LOG_LEVEL": level} for level in "30")
    done = run_interpreter([str(script), "--lr", "1e-3"], env=quiet)
    (named,) = re.findall("^.*tf-amp.*$", done.err, re.M)
    told = run_python(f"{TRAINING}step()\n", env=loud).err
    (line,) = re.findall("^.*tf-amp.*$", told, re.M)
    assert "`tf-amp audit SCRIPT`" in line and "AMP102" in line
    assert named == line.replace("SCRIPT", f"'{script}' -- --lr 1e-3")


@pytest.mark.skipif(
    "avx512f" not in CPU_FLAGS,
    reason="TensorFlow's pass leaves graphs of such a CPU alone",
)
def test_a_graph_in_16_bits_by_tensorflows_own_pass_says_so() -> None:
    assert lines_of(OWN_PASS, GAINS) == [
        "step computes in bfloat16 already, since TensorFlow's own pass is on: "
        "take out auto_mixed_precision, or enable_mixed_precision_graph_rewrite, "
        "and tf-amp decides (AMP107)"
    ]


@pytest.mark.parametrize(
    ("seconds", "is_faster", "text"),
    [
        (
            1.02,
            False,
            "no clear gain: 1.02 times as fast as float32 in 12 pairs of its ",
        ),
        (0.99, False, "no clear gain: 0.99 times"),
        (0.90, False, "0.90 times as fast as float32 in 12 pairs of its own steps"),
        (1.50, True, "1.50 times as fast as float32 in 12 pairs of its own steps"),
    ],
)
def test_what_is_within_noise_is_not_called_faster_or_slower(
    seconds: float, is_faster: bool, text: str
) -> None:
    compared = Verdict(((seconds, 1.0),) * 12)
    assert notices._measured(Plan((), "bfloat16"), is_faster, compared).startswith(text)


def test_the_variable_alone_has_an_eager_program_watched_from_its_start() -> None:
    program = "".join(f"{beginning(TEXTS, name)}\n" for name in ("EAGER", "LONG_ALONE"))
    done = run_python(f"{program}step()\n", env=ON)
    assert done.err.count("(AMP108)") == 1, done.err


def test_a_model_of_another_backend_computes_as_it_did() -> None:
    found = importlib.util.find_spec("jax")
    if found is None or found.origin is None:
        pytest.skip("no other backend of Keras works without JAX")
    program = """
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(64)])
model.compile("sgd", "mse")
data = np.ones((64, 64))
model.fit(data, data, verbose=0)
print(model.predict(data, verbose=0).shape)
"""
    folder = str(pathlib.Path(found.origin).parent.parent)
    env = {**ON, "KERAS_BACKEND": "jax", "PYTHONPATH": folder}
    done = run_python(program, env=env)
    assert done.lines() == ["(64, 64)"] and done.err.count("(AMP109)") == 1
