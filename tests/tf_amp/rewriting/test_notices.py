"""The lines that a process prints on stderr about its mixed precision."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.forking import run_forked
from tests.tf_amp.compare.test_own_steps import PRELUDE
from tf_amp.compare.alternation import Verdict
from tf_amp.rewriting import notices

TRAINING = """
import tensorflow as tf

weight = tf.Variable(tf.random.stateless_normal((1024, 1024), [1, 2]) / 32)
data = tf.random.stateless_normal((256, 1024), [3, 4])

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.relu(data @ weight) @ weight) ** 2)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss
"""
ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
GAINS = {**ON, "TF_AMP_DEVICE_PROFILE": "cpu-amx-bf16"}
STEPS = "for _ in range({}):\n    step()\n"
# As a long job would be.
LONG = "from tf_amp.rewriting import notices\nnotices._LONG_SECONDS = 0.0\n"


def lines_of(code: str, env: dict[str, str]) -> list[str]:
    """Run a program and return what it says of itself on stderr."""
    outcome = run_forked(code, env=env)
    outcome.lines()
    return re.findall("^tf-amp: (.*)$", outcome.err, re.MULTILINE)


def test_the_first_rewritten_graph_is_announced_once() -> None:
    again = "@tf.function\ndef other():\n    return data @ weight @ weight\nother()\n"
    (line,) = lines_of(TRAINING + STEPS.format(2) + again, GAINS)
    assert re.fullmatch(
        r"step: \d+ of \d+ operations in bfloat16, expected \d\.\d\dx"
        r"(, between \d\.\d\dx and \d\.\d\dx|, not known before it runs); "
        r"TF_AMP_VERBOSE=0 hides this \(AMP101\)",
        line,
    )


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_level_that_is_expected_to_lose_says_so_and_what_to_do(level: str) -> None:
    slow = {**ON, "TF_AMP_DEVICE_PROFILE": "cpu-generic", "TF_AMP_OPT_LEVEL": level}
    first, line = lines_of(TRAINING + STEPS.format(2), slow)
    assert first.endswith("(AMP101)")
    assert re.fullmatch(
        rf"step: with bfloat16 at {level} it is expected to be slower than float32, "
        r"0\.\d\d times as fast; TF_AMP_OPT_LEVEL=O1 takes 16 bits only where they are "
        r"faster \(AMP111\)",
        line,
    )


@pytest.mark.parametrize(
    "env", [{"TF_AMP_VERBOSE": "0"}, {"TF_ENABLE_AUTO_MIXED_PRECISION": "0"}]
)
def test_nothing_is_said_where_nobody_wants_it_or_nothing_happens(env) -> None:
    assert lines_of(LONG + TRAINING + STEPS.format(1), {**GAINS, **env}) == []


def test_a_graph_that_stays_float32_says_why_and_what_to_do() -> None:
    generic = {**ON, "TF_AMP_DEVICE_PROFILE": "cpu-generic"}
    (line,) = lines_of(TRAINING + STEPS.format(1), generic)
    assert line.startswith("step stays float32: bfloat16 is not expected to be faster")
    assert "`tf-amp audit --device-profile NAME SCRIPT`" in line
    assert line.endswith("(AMP102)")


def test_a_cpu_without_16_bit_units_is_given_as_the_reason(
    tmp_path: pathlib.Path,
) -> None:
    own = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    cpu = tmp_path / "cpuinfo"
    cpu.write_text(re.sub(r"\b(avx512_bf16|amx_\w+|bf16)\b", "", own), encoding="utf-8")
    described = f"""
import pathlib
from tf_amp.config import devices
devices._CPU_FILE = pathlib.Path({str(cpu)!r})
"""
    predicted = {**ON, "TF_AMP_TUNE": "off", "TF_AMP_CACHE": str(tmp_path)}
    (line,) = lines_of(described + TRAINING + STEPS.format(1), predicted)
    assert line == (
        "step stays float32: this CPU has no units for bfloat16, which would be "
        "slower; TF_AMP_DEVICE_PROFILE plans for another device, `tf-amp doctor` says "
        "what this one can do (AMP102)"
    )


@pytest.mark.parametrize(
    ("exclude", "code", "listed"),
    [
        ("Relu no_such_name", "", "'no_such_name' matches"),
        ("a.b c.d e.f g.h ^matmul", "", "'a.b', 'c.d', 'e.f' and 1 other match"),
        (
            "",
            "import tf_amp\ntf_amp.enable(exclude=['mul$', 'nil'])\n",
            "'nil' matches",
        ),
        ("Relu matmul", "", None),
    ],
)
def test_exclusions_that_match_nothing_are_named_at_the_end(
    exclude: str, code: str, listed: str | None
) -> None:
    given = {**GAINS, "TF_AMP_EXCLUDE": exclude}
    _, *others = lines_of(TRAINING + code + STEPS.format(2), given)
    line = (
        f"exclude: {listed} no operation of the graphs that ran; "
        "`tf-amp explain SCRIPT --top 0` lists the names (AMP110)"
    )
    assert others == ([line] if listed else [])


def test_an_excluded_layer_counts_as_no_name() -> None:
    program = """
import keras, numpy as np, tf_amp
layer = keras.layers.Dense(64)
model = keras.Sequential([keras.Input([64]), layer])
tf_amp.enable(exclude=[layer])
model.predict(np.ones([64, 64]), verbose=0)
"""
    assert [line[-8:] for line in lines_of(program, GAINS)] == ["(AMP102)"]


KERAS = """
import numpy as np, keras, tensorflow as tf
keras.config.set_dtype_policy({policy!r})
model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(64)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 64)), np.ones((64, 64)), verbose=0)
model.predict(np.ones((64, 64)), verbose=0)
"""
BY_HAND = """
import tensorflow as tf
x = tf.ones((64, 64), tf.bfloat16)
tf.function(lambda: tf.cast(tf.nn.relu(x @ x) @ x, tf.float32))()
"""
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
CPU_FLAGS = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (
            KERAS.format(policy="mixed_float16"),
            "training step of `fit` computes in float16 already, since Keras' policy "
            "mixed_float16 is on: take out the policy, the float32 of the last layer "
            "and the LossScaleOptimizer, and tf-amp decides (AMP107)",
        ),
        (
            BY_HAND,
            "function at line 4 computes in bfloat16 already, since the program casts, "
            "or a policy of its layers: take that out, and tf-amp decides (AMP107)",
        ),
        pytest.param(
            OWN_PASS,
            "step computes in bfloat16 already, since TensorFlow's own pass is on: "
            "take out auto_mixed_precision, or enable_mixed_precision_graph_rewrite, "
            "and tf-amp decides (AMP107)",
            marks=pytest.mark.skipif(
                "avx512f" not in CPU_FLAGS,
                reason="TensorFlow's pass leaves graphs of such a CPU alone",
            ),
        ),
    ],
    ids=["Keras", "by hand", "TensorFlow"],
)
def test_a_graph_in_16_bits_already_says_by_whom(program: str, line: str) -> None:
    assert lines_of(program, GAINS) == [line]


def test_the_end_of_a_long_job_says_that_it_was_in_16_bits_already() -> None:
    *_, summary = lines_of(LONG + BY_HAND, GAINS)
    assert re.search(r"\d+ s, 1 step \(calls of .*\) in bfloat16; ", summary)


@pytest.mark.parametrize("profile", ["", "cpu-amx-bf16"])
def test_what_xla_compiles_on_a_cpu_is_not_said_to_be_the_fault_of_the_cpu(
    profile: str, tmp_path: pathlib.Path
) -> None:
    compiled = TRAINING.replace("@tf.function", "@tf.function(jit_compile=True)")
    env = {**ON, "TF_AMP_DEVICE_PROFILE": profile, "TF_AMP_CACHE": str(tmp_path)}
    (line,) = lines_of(compiled + STEPS.format(1), env)
    assert line.startswith("step stays float32: on CPUs XLA (jit_compile=True)")
    assert "doctor" not in line and line.endswith("(docs/xla.md) (AMP102)")


KERAS_BEFORE = """
import numpy as np, keras, tf_amp
model = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(64)])
model.compile("sgd", "mse")
data = np.ones((64, 64))
model.fit(data, data, verbose=0)
"""
IN_A_SESSION = """
import tensorflow as tf, tf_amp
with tf.Graph().as_default():
    x = tf.random.normal((64, 64))
    product = x @ x
    session = tf.compat.v1.Session()
"""
ENABLE = "import tf_amp\ntf_amp.enable()\n"
REMEDY = (
    "stays float32, for it was traced before mixed precision was on; enable it before "
    "the first call, or afterwards make the function anew (of a Keras model: compile "
    "it again) (AMP103)"
)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (f"{TRAINING}step.get_concrete_function()\n{ENABLE}step()\nstep()", "step"),
        (f"{TRAINING}step()\n{ENABLE}step()\nstep()", "step"),
        (
            f"{TRAINING}{ENABLE}tf_amp.disable()\nstep()\ntf_amp.enable()\nstep()",
            "step",
        ),
        (
            TRAINING.replace("@tf.function", "@tf.function(jit_compile=True)")
            + f"step()\n{ENABLE}step()",
            "step",
        ),
        (
            f"{TRAINING}product = tf.function(lambda: data @ weight)\nproduct()\n"
            f"{ENABLE}product()",
            "function called at line 17",
        ),
        (
            f"{KERAS_BEFORE}{ENABLE}model.fit(data, data, verbose=0)",
            "training step of `fit`",
        ),
    ],
)
def test_what_was_traced_before_is_named_once_with_what_to_do(
    program: str, name: str
) -> None:
    assert lines_of(program, {}) == [f"{name} {REMEDY}"]


def test_a_session_made_before_is_named_too() -> None:
    run = "session.run(product)\n"
    (line,) = lines_of(IN_A_SESSION + run + ENABLE + run + run, {})
    assert line.startswith("graph of a Session stays float32, for it was traced before")


@pytest.mark.parametrize(
    "program",
    [
        # What has nothing to gain, and what the program has taken out itself.
        "import tensorflow as tf\nadd = tf.function(lambda x: x + x)\nadd(1.0)\n"
        f"{ENABLE}add(1.0)",
        f"{TRAINING}step()\n{ENABLE}with tf_amp.float32_scope():\n"
        "    tf.function(step.python_function)()",
        f"{TRAINING}pairs = tf.data.Dataset.range(3).map(lambda _: data @ weight)\n"
        f"{ENABLE}list(pairs)",
        f"{TRAINING}step()\nimport tf_amp\ntf_amp.enable(verbose=False)\nstep()",
        f"{TRAINING}step()\n{ENABLE}tf_amp.disable()\nstep()",
        f"{TRAINING}step()\nimport tf_amp\ntf_amp.enable(opt_level='O0')\nstep()",
    ],
)
def test_nothing_is_said_of_what_no_order_of_calls_would_change(program: str) -> None:
    assert not [line for line in lines_of(program, {}) if "(AMP103)" in line]


def test_what_was_saved_before_is_not_taken_for_what_was_traced_before(
    tmp_path: pathlib.Path,
) -> None:
    program = f"""
class Model(tf.Module):
    def __init__(self):
        self.weight = weight

    @tf.function(input_signature=[tf.TensorSpec((None, 1024))])
    def product(self, x):
        return tf.nn.relu(x @ self.weight)

tf.saved_model.save(Model(), {str(tmp_path)!r})
{ENABLE}
model = tf.saved_model.load({str(tmp_path)!r})
model.product(data)
"""
    lines = lines_of(TRAINING + program, GAINS)
    assert lines and not [line for line in lines if "(AMP103)" in line]


def compared_lines(slow: str, cache: pathlib.Path) -> list[str]:
    """Return what a long job says of which one instance is slow."""
    program = f"{PRELUDE}{LONG}slow = {slow!r}\ntf_amp.enable()\nlabels_of(80)\n"
    return lines_of(program, {"TF_AMP_TUNE": "on", "TF_AMP_CACHE": str(cache)})


def test_steps_that_ran_both_ways_and_the_end_of_a_long_job_are_reported(
    tmp_path: pathlib.Path,
) -> None:
    rewritten, compared, summary = compared_lines("float32", tmp_path)
    assert rewritten.endswith("(AMP101)")
    assert re.fullmatch(
        r"step: \d+\.\d\d times as fast as float32 in \d+ pairs of its own steps; "
        r"16 bits stay, and `tf_amp.plans\(\)` says where \(AMP104\)",
        compared,
    )
    (of_all,) = re.findall(r"\d+ of \d+ operations in bfloat16", rewritten)
    assert re.fullmatch(
        rf"\d+ s, 80 steps \(calls of step\) with {of_all}, "
        r"\d+\.\d\d times as fast as float32, measured; "
        r"`tf_amp.plans\(\)`, or a folder in TF_AMP_LOG, has every decision "
        r"\(AMP105\)",
        summary,
    )


def test_a_long_job_that_ended_in_float32_says_by_how_much_16_bits_lost(
    tmp_path: pathlib.Path,
) -> None:
    _, compared, summary = compared_lines("", tmp_path)
    (ratio,) = re.findall(r"0\.\d\d times as fast as float32", compared)
    assert re.fullmatch(
        r"\d+ s, 80 steps \(calls of step\) in float32 at the end, since 16 bits were "
        rf"{ratio}, measured; a folder in TF_AMP_LOG keeps the plan that lost, and "
        r"TF_AMP_TUNE=off would keep 16 bits \(AMP105\)",
        summary,
    )
    known, summary = compared_lines("", tmp_path)
    assert known.startswith("step stays float32") and known.endswith("(AMP102)")
    assert re.fullmatch(
        # Why, the first line has said.
        r"\d+ s, 80 steps \(calls of step\) in float32 \(AMP105\)",
        summary,
    )


# The gain may well be none.
CLOSE = "CostModel.price = lambda *args: believed(*args)._replace(error=3.0)\n"
WAITS = (
    "step stays float32: bfloat16 may be no faster, which its calls from the 21st on "
    "show; with TF_AMP_TUNE=off it stays so (AMP102)"
)


def close_call(program: str, cache: pathlib.Path) -> list[str]:
    """Return what a job says whose plan may gain nothing."""
    env = {"TF_AMP_TUNE": "on", "TF_AMP_CACHE": str(cache)}
    return lines_of(f"{PRELUDE}{CLOSE}{program}", env)


@pytest.mark.parametrize("slow", ["float32", ""])
def test_a_close_call_has_one_line_and_then_its_verdict(
    slow: str, tmp_path: pathlib.Path
) -> None:
    program = f"slow = {slow!r}\ntf_amp.enable()\nlabels_of(60)\n"
    waits, verdict = close_call(program, tmp_path)
    assert waits == WAITS
    kept = "16 bits stay, and `tf_amp.plans()` says where (AMP104)"
    lost = (
        "it runs in float32 from now on, and TF_AMP_OPT_LEVEL=O2 would keep 16 bits "
        "(AMP104)"
    )
    assert verdict.endswith(kept if slow else lost)


@pytest.mark.parametrize(
    ("before", "calls", "how"),
    [
        ("", 5, "in float32"),
        ("", 22, "in float32, but for some that were compared"),
        (LONG, 5, "in float32"),
    ],
)
def test_a_job_that_ends_before_its_verdict_says_so(
    before: str, calls: int, how: str, tmp_path: pathlib.Path
) -> None:
    program = f"{before}tf_amp.enable()\nlabels_of({calls})\n"
    waits, said = close_call(program, tmp_path)
    told = f"{calls} steps (calls of step) {how}; {notices._TOO_FEW} (AMP105)"
    assert waits == WAITS
    assert re.fullmatch((r"\d+ s, " if before else "") + re.escape(told), said)


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
    assert notices._measured(is_faster, compared).startswith(text)


def test_a_summary_tells_how_many_steps_were_skipped() -> None:
    program = """
import tensorflow as tf
import tf_amp
tf_amp.enable(dtype="float16", loss_scale=1024.0)
weight = tf.Variable(tf.eye(256))
optimizer = tf.keras.optimizers.SGD(0.0)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(x @ weight) @ weight)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

for factor in (1.0, float("inf"), 1.0):
    step(tf.fill((256, 256), factor))
"""
    *_, summary = lines_of(LONG + program, GAINS)
    assert "3 steps (calls of step)" in summary
    assert "; 1 step skipped" in summary and summary.endswith("(AMP105)")
