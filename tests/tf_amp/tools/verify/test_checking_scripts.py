"""Scripts are verified and measured while they run, as they are."""

import json
import textwrap

import pytest

from tests.command_lines import run_line
from tests.forking import run_forked_command

# The third batch is out of float16's range, within the first layer.
_TRAINING = """
import sys
import keras, numpy as np

keras.utils.set_random_seed(1)
model = keras.Sequential([
    # Of layers that a first batch builds TensorFlow has names of its own.
    keras.layers.Dense(64, activation="relu", name="first"),
    keras.layers.Dropout(0.5),
    keras.layers.Dense(4, name="first_1"),
])
model.compile("adam", "mse", jit_compile=False)
x = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")
x[32:48] *= 1e5
history = model.fit(
    x, np.ones((64, 4), "float32"), batch_size=16, epochs=1, verbose=0, shuffle=False
)
print("loss", history.history["loss"][0], sys.argv[1:])
"""
_SESSION = """
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

tf1.disable_eager_execution()
x = tf1.placeholder(tf.float32, (None, 16), name="x")
weight = tf1.get_variable("weight", (16, 4), initializer=tf1.ones_initializer())
loss = tf.reduce_mean(tf.matmul(x, weight) ** 2, name="loss")
step = tf1.train.GradientDescentOptimizer(0.01).minimize(loss)
with tf1.Session() as session:
    session.run(tf1.global_variables_initializer())
    batch = np.random.default_rng(0).standard_normal((8, 16))
    print("loss", [float(session.run([loss, step], {x: batch})[0]) for _ in range(2)])
"""
_REASONS = """
import runpy, tf_amp
runpy.run_path(SCRIPT, run_name="__main__")
kept = [p.filter(reason="measured_range").decisions for p in tf_amp.plans()]
print(sorted({d.slot.node for rows in kept for d in rows if d.op == "_FusedMatMul"}))
"""
_FORCED = {"TF_AMP_OPT_LEVEL": "O2", "TF_AMP_DTYPE": "float16"}


def _script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def _loss(printed):
    return next(line for line in printed.splitlines() if line.startswith("loss"))


def test_a_training_script_is_verified_at_its_first_step(tmp_path):
    script = _script(tmp_path, _TRAINING)
    plain = run_forked_command([str(script), "--fast"], cwd=tmp_path)
    options = "--dtype bfloat16 --opt-level O2 --json -- --fast"
    done = run_line(f"tf-amp verify train.py {options}", tmp_path)
    assert done.code == 0, done.err
    # The program runs in float32, on the same data, to the same result.
    assert _loss(done.err) == _loss(plain.out)
    found = json.loads(done.out)
    assert len(found) == 1
    assert found[0]["ok"] and found[0]["low_operations"] > 2
    gradients = [c["name"] for c in found[0]["checks"] if c["kind"] == "gradient"]
    assert sorted(gradients) == [
        "sequential/first/bias",
        "sequential/first/kernel",
        "sequential/first_1/bias",
        "sequential/first_1/kernel",
    ]


def test_what_a_script_was_seen_to_overflow_stays_float32_in_later_runs(tmp_path):
    script = _script(tmp_path, _TRAINING)
    line = "tf-amp ranges train.py --limit 512 --out ranges.json"
    done = run_line(line, tmp_path)
    assert done.code == 0, done.err
    assert "in batch 3, beyond 512" in done.out
    later = tmp_path / "later.py"
    later.write_text(_REASONS.replace("SCRIPT", repr(str(script))))
    options = "--opt-level O2 --dtype bfloat16 --ranges ranges.json"
    kept = run_line(f"tf-amp run {options} later.py", tmp_path).lines()[-1]
    assert "/first_1/Relu" in kept and "/first_1_2/BiasAdd" in kept


def test_a_session_is_verified_and_its_culprits_are_written_to_a_file(tmp_path):
    _script(tmp_path, _SESSION)
    line = "tf-amp verify train.py --tolerance 1e-5 --bisect --write exclude.txt"
    done = run_line(line, tmp_path, env=_FORCED)
    assert done.code == 1, done.err
    assert "MatMul (MatMul)" in done.out and "gradient" in done.out
    assert "^MatMul$" in (tmp_path / "exclude.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("verify", ".", "--seconds", "3"), "belong to scripts"),
        (("verify", "train.py", "--data", "x.npz"), "--data can be given with a"),
        (("ranges", "train.py", "--limit", "0"), "greater than 0"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    tmp_path, monkeypatch, capsys, arguments, told
):
    from tf_amp.commands import cli

    _script(tmp_path, "print()")
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_an_exclusion_that_matches_nothing_is_told(tmp_path):
    _script(tmp_path, _SESSION)
    line = "tf-amp verify train.py --exclude ^MatMul --exclude no_such_name"
    done = run_line(line, tmp_path, env=_FORCED)
    said = [line for line in done.err.splitlines() if "exclude" in line]
    assert said == [
        "tf-amp: exclude: 'no_such_name' matches no operation of what was verified."
    ]


_COMPILED = """
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
body, huge = (
    tf.Variable(rng.normal(size=(16, 16)).astype("float32"), name=name)
    for name in ("body", "huge")
)

def forward(x, factor=1e5):
    fine = tf.tanh(tf.matmul(x, body)) * factor
    return tf.reduce_mean(tf.tanh(tf.matmul(fine, huge, name="culprit") / factor))

@tf.function(jit_compile=True)
def train(x):
    with tf.GradientTape() as tape:
        value = forward(x, factor=1.0)
    for each, gradient in zip((body, huge), tape.gradient(value, (body, huge))):
        each.assign_sub(0.1 * gradient)
    return value

x = rng.normal(size=(8, 16)).astype("float32")
loss = tf.function(forward, jit_compile=True)
with tf.GradientTape() as tape:
    value = loss(x)
print("loss", float(tape.gradient(value, body)[0, 0]), float(train(x)), float(train(x)))
"""


def test_compiled_functions_are_verified_under_xla(tmp_path):
    script = _script(tmp_path, _COMPILED)
    plain = run_forked_command([str(script)], cwd=tmp_path)
    # XLA compiles a graph anew for each scale that is tried, down from this one.
    forced = {**_FORCED, "TF_AMP_LOSS_SCALE": "dynamic:initial=2"}
    line = "tf-amp verify train.py --bisect --write exclude.txt --json"
    done = run_line(line, tmp_path, env=forced)
    assert done.code == 1, done.err
    wanted, loss = (_loss(each).split()[1:] for each in (plain.out, done.err))
    assert list(map(float, loss)) == pytest.approx(list(map(float, wanted)), 1e-4)
    found = {each["graph"]: each for each in json.loads(done.out)}
    assert all("under XLA" in each["plan"] for each in found.values())
    # The pair of functions that the tape around the compiled one has made, and a step.
    assert any(name.startswith("__backward_forward") for name in found)
    gradients = [c["name"] for c in found["train"]["checks"] if c["kind"] == "gradient"]
    assert sorted(gradients) == ["body", "huge"]
    assert "culprit" in (tmp_path / "exclude.txt").read_text()
