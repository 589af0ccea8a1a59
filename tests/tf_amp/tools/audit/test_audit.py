"""Audits: plans for devices that are not present, and what holds them back."""

import json
import textwrap
import time

import keras
import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.costs import DeviceProfile
from tests.forking import run_forked_command
from tf_amp.commands import cli
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.tools import running_scripts, target_device
from tf_amp.tools.audit import audit_saved_model


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A Keras export whose last layer is 1001 wide."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    model = keras.Sequential(
        [
            keras.Input((2048,)),
            keras.layers.Dense(2048, activation="relu"),
            keras.layers.Dense(1001),
            keras.layers.Softmax(),
        ]
    )
    model.export(folder, verbose=False)
    return folder


def test_a_layer_1001_wide_is_named_with_the_next_multiple_of_eight(exported):
    (audit,) = audit_saved_model(exported, target_device.target_of("v100"), batch=4096)
    worst = audit.obstacles[0]
    assert worst.op == "MatMul" and worst.shape == "[4096,2048]x[2048,1001]"
    assert "columns (n) of 1001: no multiple of 8" in worst.why
    assert "1001 -> 1008" in worst.remedy
    assert audit.graph == "serve, serving_default"
    assert audit.plan.low_dtype == "float16" and audit.ratio > 1.1


def test_an_aligned_layer_is_no_such_obstacle_and_gains_more():
    @tf.function
    def layer(x, w):
        return tf.nn.relu(x @ w)

    def audit(width):
        specs = tf.TensorSpec((4096, 2048)), tf.TensorSpec((2048, width))
        return tf_amp.audit(layer, *specs, device_profile="v100")

    odd, even = audit(1001), audit(1008)
    assert even.ratio > 1.5 * odd.ratio
    assert any("1001 -> 1008" in each.remedy for each in odd.obstacles)
    assert not any("multiple of 8" in each.why for each in even.obstacles)


def test_a_plan_for_a_gpu_is_not_limited_by_kernels_of_the_cpu():
    @tf.function
    def stack(x, kernel, bias):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))

    audit = tf_amp.audit(
        stack,
        tf.TensorSpec((64, 56, 56, 256)),
        tf.TensorSpec((3, 3, 256, 256)),
        tf.TensorSpec((256,)),
        device_profile="v100",
    )
    low = {row.op for row in audit.plan.decisions if row.is_low}
    # On a CPU the fused convolution refuses float16.
    assert any("Conv2D" in op for op in low)
    assert audit.ratio > 2.0
    assert "definitions of the ops" in audit.kernels


def test_the_graph_is_optimized_as_for_the_device():
    """TensorFlow fuses a product with Tanh on a CPU, and not on a GPU."""

    @tf.function
    def layer(x, w, bias):
        return tf.tanh(tf.nn.bias_add(x @ w, bias))

    specs = tf.TensorSpec((64, 64)), tf.TensorSpec((64, 64)), tf.TensorSpec((64,))
    function = layer.get_concrete_function(*specs)
    kept = (function.outputs[0].op.name,)
    fused = {}
    for name in ("v100", "cpu-generic"):
        target = target_device.target_of(name)
        graph_def = target.optimized(function.graph.as_graph_def(), kept)
        assert not any(node.device for node in graph_def.node)
        home = target.settings(AmpConfig()).home
        assert home is not None and home.device_type == target.device_type
        fused[name] = any(node.op == "_FusedMatMul" for node in graph_def.node)
    assert fused == {"v100": False, "cpu-generic": True}


def test_a_product_in_a_loop_has_the_rows_of_what_was_unstacked():
    """And not those of the table that this was looked up in."""

    @tf.function
    def summed(table, indices, kernel):
        steps = tf.TensorArray(tf.float32, tf.shape(indices)[0])
        steps = steps.unstack(tf.gather(table, indices))
        total = tf.zeros((8, 64))
        for step in tf.range(tf.shape(indices)[0]):
            total = tf.tanh(steps.read(step) @ kernel + total)
        return total

    audit = tf_amp.audit(
        summed,
        tf.TensorSpec((30_001, 64)),
        tf.TensorSpec((None, 8), tf.int32),
        tf.TensorSpec((64, 64)),
        device_profile="v100",
    )
    products = [each.shape for each in audit.obstacles if "MatMul" in each.op]
    assert products == ["[8,64]x[64,64]"]


def test_what_has_nothing_to_gain_is_said_to():
    audit = tf_amp.audit(lambda x: x + 1.0, tf.TensorSpec((4,)), device_profile="v100")
    assert "no matrix product or convolution" in str(audit)
    assert "step (ms)" in str(audit)


def test_a_small_batch_leaves_the_device_idle():
    @tf.function
    def layer(x, w):
        return tf.nn.relu(x @ w)

    specs = tf.TensorSpec((8, 512)), tf.TensorSpec((512, 2048))
    audit = tf_amp.audit(layer, *specs, device_profile="v100")
    words = " ".join(f"{each.why} {each.remedy}" for each in audit.obstacles)
    assert "larger batch" in words


def test_what_numerics_deny_is_said_to_be_denied():
    @tf.function
    def layer(x, w):
        return tf.exp(x @ w)

    specs = tf.TensorSpec((4096, 1024)), tf.TensorSpec((1024, 1024))
    audit = tf_amp.audit(layer, *specs, device_profile="v100")
    denied = next(each for each in audit.obstacles if each.op == "Exp")
    assert denied.dtype == "float32" and "denied" in denied.why


@pytest.mark.parametrize("name", DeviceProfile.names())
def test_every_shipped_device_can_be_audited(name):
    @tf.function
    def layer(x, w):
        return tf.nn.relu(x @ w)

    specs = tf.TensorSpec((8192, 4096)), tf.TensorSpec((4096, 4096))
    audit = tf_amp.audit(layer, *specs, device_profile=name)
    assert audit.plan.seconds_before >= audit.plan.seconds_after > 0.0
    pays = name not in {"cpu-generic", "cpu-intel-avx512-bf16"}
    assert ("does not pay" not in str(audit)) == pays


def test_reports_fit_in_80_columns(exported):
    (audit,) = audit_saved_model(exported, target_device.target_of("v100"))
    lines = str(audit).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("count as 32" in line for line in lines)


def test_json_holds_the_figures_and_the_obstacles(exported, capsys):
    arguments = ["audit", str(exported), "--device-profile", "v100", "--batch", "512"]
    assert cli.main([*arguments, "--json"]) == 0
    (audit,) = json.loads(capsys.readouterr().out)
    assert audit["device"] == "v100" and audit["low_dtype"] == "float16"
    assert audit["ratio"] == audit["seconds_float32"] / audit["seconds_mixed"]
    assert len(audit["obstacles"]) <= 10
    assert audit["activation_bytes_float32"] > 0 < audit["activation_bytes_mixed"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--device", "v100"], ("nowhere: no such SavedModel",)),
        (["{empty}", "--device", "v100"], ("does not hold a SavedModel",)),
        (["{model}", "--device", "t4", "--signature", "x"], ("serving_default",)),
        (["{model}", "--device", "t4", "--", "x"], ("belong to scripts",)),
    ],
)
def test_bad_input_is_named_and_ends_with_2(
    arguments, words, exported, tmp_path, capsys
):
    filled = [each.format(model=exported, empty=tmp_path) for each in arguments]
    assert cli.main(["audit", *filled]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--device-profile", "v1000", ("did you mean 'v100'", "a100", "t4")),
        ("--dtype", "float8", ("bfloat16", "float16")),
        ("--batch", "0", ("wanted is 1 or more",)),
    ],
)
def test_a_wrong_option_is_named(option, value, words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", "model", "--device-profile", "t4", option, value])
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert all(word in said for word in (f"argument {option}:", repr(value), *words))


@pytest.mark.parametrize("seconds", ["inf", "1e20", "nan", "0", "-3", "soon"])
@pytest.mark.parametrize("command", [("audit", "--device", "t4"), ("verify",)])
def test_a_time_that_cannot_be_waited_for_is_refused(
    command, seconds, tmp_path, capsys
):
    script = tmp_path / "script.py"
    script.write_text("raise AssertionError('not to be run')")
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, str(script), f"--seconds={seconds}"])
    assert ended.value.code == 2
    assert f"--seconds: received '{seconds}'" in capsys.readouterr().err


def test_an_unknown_device_is_refused_in_python_too():
    with pytest.raises(ConfigError, match="Known are a100"):
        tf_amp.audit(lambda x: x, tf.TensorSpec(()), device_profile="gtx")


def test_arguments_after_two_dashes_are_the_scripts():
    split = cli.split
    assert split(["audit", "a.py", "--", "-x"]) == (["audit", "a.py"], ["-x"])
    assert split(["run", "a.py", "--", "-x"]) == (["run", "a.py", "--", "-x"], [])


SCRIPT = """
    import sys
    import tensorflow as tf

    @tf.function
    def step(x, w):
        return tf.nn.relu(x @ w)

    x, w = tf.ones((512, 1024)), tf.ones((1024, 1001))
    result = step(x, w)
    graph = step.get_concrete_function(x, w).graph
    print("dtype", result.dtype.name, "arguments", sys.argv[1:], flush=True)
    sys.exit(3)
"""


def audited_script(tmp_path, *arguments, env=None):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = ("-m", "tf_amp", "audit", str(script), "--device", "v100")
    return run_forked_command((*command, *arguments), env=env)


def test_a_script_runs_with_its_graphs_planned(tmp_path):
    done = audited_script(tmp_path, "--", "--lr", "1")
    assert done.code == 1, done.err
    assert "dtype float32 arguments ['--lr', '1']" in done.out
    assert "step: float16 does not pay on v100" in " ".join(done.out.split())
    assert "1001 -> 1008" in " ".join(done.out.split())


def test_a_level_that_leaves_graphs_alone_is_named_as_the_cause(tmp_path):
    done = audited_script(tmp_path, env={"TF_AMP_OPT_LEVEL": "O0"})
    assert done.code == 1, done.err
    assert "every graph stays as it is at level O0" in done.err
    assert "no graph with a matrix product" not in done.err


def test_a_script_is_stopped_when_its_time_is_up():
    begin = time.monotonic()
    with pytest.raises(running_scripts.TimeIsUp), running_scripts.limited(0.05):
        time.sleep(60)
    assert time.monotonic() - begin < 30
    with running_scripts.limited(None):
        pass


def test_what_the_program_keeps_in_float32_stays_so_in_an_audit(disabled_afterwards):
    specs = tf.TensorSpec((4096, 1024)), tf.TensorSpec((1024, 1024))
    early = tf.function(lambda x, w: tf.matmul(x, w))
    early.get_concrete_function(*specs)

    @tf.function
    def step(x, w):
        with tf.name_scope("head"):
            excluded = x @ w
        return tf.nn.relu(early(excluded, w) @ w)

    with tf_amp.mixed_precision_scope(dtype="float16", exclude=["^head/"]):
        traced = step.get_concrete_function(*specs)
    plan = tf_amp.audit(traced, device_profile="v100").plan
    types = [row.dtype for row in plan.decisions if row.op == "MatMul"]
    assert sorted(types) == ["float16", "float32", "float32"]
