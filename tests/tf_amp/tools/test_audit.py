"""Audits: plans for devices that are not present, and what holds them back."""

import dataclasses
import inspect
import json
import os
import re
import time
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.costs import DeviceProfile
from grappler_pass.graph.op_traits import INPUT, RESULT
from grappler_pass.planning.plan import Cause, Fusion, Reason
from tests.command_lines import run_line
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.report import plan_page
from tf_amp.tools import running_scripts, target_device
from tf_amp.tools.audit import audit_saved_model, print_audits
from tf_amp.tools.obstacles import Remedy, reason_and_remedy


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A Keras export whose last layer is 1001 wide."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    dense = keras.layers.Dense
    layers = [dense(2048, activation="relu"), dense(1001), keras.layers.Softmax()]
    keras.Sequential([keras.Input((2048,)), *layers]).export(folder, verbose=False)
    return folder


def audited(function, *shapes, device="v100", **options):
    specs = map(tf.TensorSpec, shapes)
    return tf_amp.audit(tf.function(function), *specs, device_profile=device, **options)


def obstacle_of(op, audit):
    return next(each for each in audit.obstacles if each.op == op)


def test_a_layer_1001_wide_is_named_with_the_next_multiple_of_eight(exported):
    (audit,) = audit_saved_model(exported, target_device.target_of("v100"), batch=4096)
    worst = audit.obstacles[0]
    assert worst.op == "MatMul" and worst.shape == "[4096,2048]x[2048,1001]"
    assert "columns (n) of 1001: no multiple of 8" in worst.why
    assert "1001 -> 1008" in worst.remedy
    assert audit.graph == "serve, serving_default"
    assert audit.plan.low_dtype == "float16" and audit.ratio > 1.1
    aligned = audited(lambda x, w: tf.nn.relu(x @ w), (4096, 2048), (2048, 1008))
    assert not any("multiple of 8" in each.why for each in aligned.obstacles)


def test_notes_are_on_what_was_shown(exported, capsys):
    target = target_device.target_of("v100")
    dense = audited(lambda x, w: x @ w, (4096, 4096), (4096, 4096))
    powers = audited(lambda x, w: tf.exp(x @ w) @ w, (1024, 1024), (1024, 1024))
    for audit in (dataclasses.replace(dense, obstacles=()), powers):
        print_audits((audit,), target)
        text = capsys.readouterr().out
        has_remedy = any("--add" in each.remedy for each in audit.obstacles)
        assert ("\nsaves: " in text) == any(each.remedy for each in audit.obstacles)
        assert ("\n--add: an option, as in" in text) == has_remedy
        assert "DENYLIST" not in text and "\n\n\n" not in text
    assert has_remedy
    assert "This is for v100. This machine has " in " ".join(text.split())


def test_without_a_name_it_is_the_device_of_this_machine(monkeypatch):
    here = tf_amp.audit(tf.function(lambda x: x @ x), tf.TensorSpec((512, 512)))
    kind = "GPU" if len(devices.present_devices()) > 1 else "CPU"
    profile = devices.profile_of(AmpConfig.from_env(), devices.device_of_type(kind))
    assert here.device == profile.name
    assert not devices.note_on_other_machine(profile)
    monkeypatch.setenv("TF_AMP_DEVICE_PROFILE", "t4")
    named = target_device.target_of(None)
    assert (named.profile.name, named.low_dtype) == ("t4", "float16")
    assert "This is for t4." in devices.note_on_other_machine(named.profile)


def test_fusions_have_a_row_and_audit_plan_and_page_say_the_same_ratio():
    audit = audited(lambda x, w: x @ w, (4096, 4096), (4096, 4096))
    before, after = audit.plan.seconds_before, audit.plan.seconds_after
    assert "float32 with fusions" not in str(audit)
    traced = Fusion("optimizer_steps", "adam", before, Reason(Cause.TRACED))
    plan = dataclasses.replace(audit.plan, traced_fusions=(traced,))
    audit, ratio = dataclasses.replace(audit, plan=plan), f"{2 * before / after:.2f}"
    text = str(audit)
    assert re.search(r"float32 without tf-amp +\S+ +1.00 +- +-\n", text)
    assert re.search(r"float32 with fusions +\S+ +2.00 +\d", text)
    assert re.search(rf"with tf-amp, float16 +\S+ +{ratio} ", text)
    assert audit.to_json()["ratio"] == pytest.approx(2 * before / after)
    assert f"({ratio}x, " in plan.summary()
    cards = [card.note for card in plan_page.section_of(plan).cards]
    assert any(f"predicted speed-up {ratio}x" in note for note in cards)


def test_a_report_fits_in_80_columns_and_says_what_sizes_count_as(exported):
    (audit,) = audit_saved_model(exported, target_device.target_of("v100"))
    lines = str(audit).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("counts as 32" in line for line in lines)


def test_a_plan_for_a_gpu_is_not_limited_by_kernels_of_the_cpu():
    def stack(x, kernel, bias):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))

    audit = audited(stack, (64, 56, 56, 256), (3, 3, 256, 256), (256,))
    # On a CPU the fused convolution refuses float16.
    assert any("Conv2D" in row.op for row in audit.plan.decisions if row.is_low)
    assert audit.ratio > 2.0
    assert "definitions of the ops" in audit.kernels


def test_the_graph_is_optimized_as_for_the_device():
    """TensorFlow fuses a product with Tanh on a CPU, and not on a GPU."""
    layer = tf.function(lambda x, w, bias: tf.tanh(tf.nn.bias_add(x @ w, bias)))
    specs = map(tf.TensorSpec, ((64, 64), (64, 64), (64,)))
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
            total = tf.tanh((steps.read(step) + total) @ kernel)
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


@pytest.mark.parametrize("name", DeviceProfile.names())
def test_every_shipped_device_can_be_audited(name):
    layer = (lambda x, w: tf.nn.relu(x @ w)), (8192, 4096), (4096, 4096)
    audit = audited(*layer, device=name)
    assert audit.plan.seconds_before >= audit.plan.seconds_after > 0.0
    pays = name not in {"cpu-generic", "cpu-intel-avx512-bf16"}
    assert ("does not pay" not in str(audit)) == pays
    # What gains nothing has nothing to lose: it is counted, and is no obstacle.
    assert ("16 bits are not faster here for 2 operations" in str(audit)) != pays
    assert pays or not audit.obstacles


def test_what_has_no_product_is_priced_for_those_who_ask():
    audit = audited(lambda x: tf.tanh(x) + 1.0, (4096, 4096))
    assert audit.plan.is_empty
    assert audit.plan.seconds_before == audit.plan.seconds_after > 0.0
    assert {each.op for each in audit.obstacles} >= {"Tanh"}
    assert "no matrix product or convolution" in str(audit)


@pytest.mark.parametrize(
    ("function", "shapes", "op", "why", "remedy"),
    [
        (lambda x, w: tf.nn.relu(x @ w), ((8, 512), (512, 2048)), "MatMul", "",
         "larger batch"),
        (lambda x, w: tf.exp(x @ w), ((4096, 1024), (1024, 1024)), "Exp",
         "needs float32", "--add clear=Exp"),
        (lambda x, w: x @ w, ((2048, 2048), (2048, 2048)), "MatMul",
         "casts take .* ms of it", "cast the input .* to float16 \\(Placeholder\\)"),
        (lambda x, w: x @ w, ((4096, 32), (32, 4096)), "MatMul",
         "16 bits are faster, the casts around it are not worth it",
         "cast the input .* to float16 \\(Placeholder\\)"),
    ],
    ids=["idle", "denied", "cast-heavy", "dear casts"],
)  # fmt: skip
def test_what_holds_an_op_back_is_said_with_what_helps(
    function, shapes, op, why, remedy
):
    obstacle = obstacle_of(op, audited(function, *shapes))
    assert re.search(why, obstacle.why) and re.search(remedy, obstacle.remedy)


def row(**fields):
    return SimpleNamespace(**fields)


def neighbor(cause, detail="", op="Exp"):
    return row(proto=op), row(op=op, reason=Reason(cause, detail))


INPUT_NEIGHBOR = neighbor(Cause.FIXED, INPUT)
RESULT_NEIGHBOR = neighbor(Cause.FIXED, RESULT)
CONSTANT = neighbor(Cause.FIXED, "a constant")
VARIABLE = neighbor(Cause.PRESERVED, op="ReadVariableOp")
DENIED = neighbor(Cause.DENY, "range hazard")


def node(*, is_low, cast, low=1.0, cause="COST", reason="", beside=()):
    """A node of 4 seconds that takes `low` in 16 bits, and `cast` for its casts."""
    return row(
        is_low=is_low,
        low_dtype="bfloat16",
        lost_seconds=0.5,
        draft=row(settings=row(lists=row(place_of=lambda proto: row(op=proto)))),
        alternatives=row(freeing=lambda op, node: Remedy(f"--add clear={op}")),
        decision=row(
            cast_seconds=cast,
            seconds_float32=4.0,
            seconds_low=low,
            reason=Reason(Cause[cause], reason),
        ),
        seconds=(low if is_low else 4.0) + cast,
        product=None,
        works=(),
        weight=1.0,
        roofline=row(
            multiprocessors=None, overhead_seconds=1e-6, dispatch_seconds=1e-6
        ),
        float32_neighbors=lambda: iter(beside),
    )


@pytest.mark.parametrize(
    ("beside", "remedy"),
    [
        (
            [INPUT_NEIGHBOR],
            "cast the input before the call, as in Dataset.map, to bfloat16 (Exp)",
        ),
        (
            [RESULT_NEIGHBOR],
            "let the function return this result in bfloat16 (Exp)",
        ),
        (
            [neighbor(Cause.PRESERVED)],
            "pass inputs, and take results, in bfloat16 (Exp)",
        ),
        ([DENIED], "--add clear=Exp, for its neighbor"),
        ([CONSTANT], ""),
        ([VARIABLE, neighbor(Cause.SUM)], ""),
        ([CONSTANT, DENIED, INPUT_NEIGHBOR], "--add clear=Exp, for its neighbor"),
        ([], ""),
    ],
    ids="input result output denied constant variable several none".split(),
)
def test_the_remedy_is_to_free_the_neighbor(beside, remedy):
    why, found = reason_and_remedy(node(is_low=True, cast=1.0, beside=beside))
    assert (why, found.text) == ("casts take 1e+03 ms of it", remedy)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        # Casts of less than a quarter are not the reason.
        (node(is_low=True, cast=0.32), "bound by memory"),
        (node(is_low=True, cast=0.34), "casts take"),
        (node(is_low=False, cast=0, low=5, cause="COST", reason="as fast"), "as fast"),
        (node(is_low=False, cast=0, cause="CASTS", beside=[DENIED]), "16 bits are fas"),
        # Of a plan that gains too little as a whole, its casts are not the reason.
        (node(is_low=False, cast=0, cause="MARGIN", reason="too little"), "too little"),
    ],
)
def test_casts_are_blamed_where_they_are_the_reason(case, why):
    assert why in reason_and_remedy(case)[0]


def fused(x, w, bias):
    return tf.nn.relu(tf.nn.bias_add(x @ w, bias)) @ w


def powers(x, w):
    return tf.exp(x @ w) @ w


def squares(x, w):
    """Compute what is denied in float16 only, and keeps relative errors."""
    return tf.square(x @ w) @ w


def by_powers(x, w):
    """Divide by what is denied in float16 only."""
    product = x @ w
    return (product / tf.exp(product)) @ w


def by_a_mean(x, w):
    """Divide by what is denied in both types."""
    product = x @ w
    mean = tf.reduce_mean(product)
    for _ in range(4):
        product = product / mean
    return product @ w


def hyperbolic(x, w):
    """Compute Cosh, which is in no list."""
    return tf.cosh(x @ w) @ w


def beta(x, w):
    """Compute Betainc, which is in no list and has no 16-bit kernel."""
    product = x @ w
    return tf.math.betainc(product, product, product) @ w


def powers_apart(x, w):
    """Compute Exp between Sums, far from products."""
    return tf.reduce_sum(tf.exp(x * tf.reduce_sum(x @ w)))


CPU, V100 = ("cpu-avx512-bf16", "bfloat16"), ("v100", "float16")
H100 = ("h100", "float16")


def of_1024(function, device, low_dtype):
    """Audit a function of matrices of 1024 by 1024, and a bias if it takes one."""
    shapes = {"x": (1024, 1024), "w": (1024, 1024), "bias": (1024,)}
    given = [shapes[name] for name in inspect.signature(function).parameters]
    return audited(function, *given, device=device, dtype=low_dtype)


def remedy_of(op, audit):
    obstacle = obstacle_of(op, audit)
    assert obstacle.dtype == "float32"
    return obstacle.remedy


def follow(remedy, monkeypatch):
    """Edit the variables of the lists as a remedy says."""
    for op, name in re.findall(r"take (\w+) out of (\w+)", remedy):
        ops = os.environ[LIST_PREFIX + name].split(",")
        left = ",".join(each for each in ops if each != op)
        monkeypatch.setenv(LIST_PREFIX + name, left)
    for op in re.findall(r"--add clear=(\w+)", remedy):
        monkeypatch.setenv(f"{LIST_PREFIX}CLEARLIST_ADD", op)


@pytest.mark.parametrize(
    ("function", "op", "device", "edit", "remedy"),
    [
        (powers, "Exp", V100, "", "--add clear=Exp"),
        (powers, "Exp", V100, "DENYLIST_ADD=Exp,Tanh",
         "take Exp out of DENYLIST_ADD, and --add clear=Exp"),
        (hyperbolic, "Cosh", V100, "", "--add clear=Cosh"),
        (by_a_mean, "RealDiv", H100, "", "--add clear=RealDiv"),
        (by_a_mean, "RealDiv", CPU, "INFERLIST_REMOVE=RealDiv",
         "take RealDiv out of INFERLIST_REMOVE, and --add clear=RealDiv"),
        (fused, "_FusedMatMul", CPU, "INFERLIST_REMOVE=BiasAdd",
         "take BiasAdd out of INFERLIST_REMOVE"),
        (fused, "_FusedMatMul", CPU, "DENYLIST_ADD=BiasAdd",
         "take BiasAdd out of DENYLIST_ADD"),
        (fused, "_FusedMatMul", CPU, "BLACKLIST_ADD=MatMul",
         "take MatMul out of BLACKLIST_ADD"),
    ],
)  # fmt: skip
def test_who_edits_the_lists_as_told_has_the_op_in_16_bits(
    function, op, device, edit, remedy, monkeypatch
):
    monkeypatch.setenv("TF_AMP_OPT_LEVEL", "O2")
    if edit:
        name, _, ops = edit.partition("=")
        monkeypatch.setenv(LIST_PREFIX + name, ops)
    before = of_1024(function, *device)
    told = remedy_of(op, before)
    assert told == f"if you know it to be harmless: {remedy}"
    follow(told, monkeypatch)
    plan = of_1024(function, *device).plan
    saved = max(before.plan.seconds_after - plan.seconds_after, 0.0)
    expected = obstacle_of(op, before).saved_seconds or 0.0
    assert expected == pytest.approx(saved, rel=1e-6)
    assert {d.dtype for d in plan.decisions if d.op == op} == {device[1]}


@pytest.mark.parametrize(
    ("function", "op"), [(squares, "Square"), (by_powers, "RealDiv")]
)
def test_bfloat16_is_the_remedy_only_where_the_op_goes_low_in_it(
    function, op, monkeypatch
):
    monkeypatch.setenv("TF_AMP_OPT_LEVEL", "O2")
    told = remedy_of(op, of_1024(function, *H100))
    assert told == "--dtype bfloat16, which has float32's range"
    plan = of_1024(function, "h100", "bfloat16").plan
    assert [d.dtype for d in plan.decisions if d.op == op] == ["bfloat16"]


@pytest.mark.parametrize(("function", "op"), [(beta, "Betainc"), (powers_apart, "Exp")])
def test_what_no_edit_of_its_list_frees_is_left_without_a_remedy(function, op):
    assert remedy_of(op, of_1024(function, *V100)) == ""


def test_a_script_is_stopped_when_its_time_is_up():
    begin = time.monotonic()
    with pytest.raises(running_scripts.TimeIsUp), running_scripts.limited(0.05):
        time.sleep(60)
    assert time.monotonic() - begin < 30
    with running_scripts.limited(None):
        pass


SCRIPT = """
import sys
import tensorflow as tf

@tf.function(jit_compile={compiled})
def step(x, w):
    return tf.nn.relu(x @ w)

x, w = tf.ones((512, 1024)), tf.ones((1024, 1001))
result = step(x, w)
graph = step.get_concrete_function(x, w).graph
print("dtype", result.dtype.name, "arguments", sys.argv[1:], flush=True)
sys.exit({code})
"""


def audited_script(
    tmp_path, more="", *, compiled=False, code=0, device="v100", env=None
):
    text = SCRIPT.format(compiled=compiled, code=code)
    (tmp_path / "script.py").write_text(text)
    line = f"tf-amp audit script.py --device-profile {device} {more}"
    return run_line(line, tmp_path, env=env)


def test_a_script_runs_in_float32_with_its_graphs_planned_though_it_fails(tmp_path):
    done = audited_script(tmp_path, "-- --lr 1", code=3)
    assert done.code == 1, done.err
    assert "dtype float32 arguments ['--lr', '1']" in done.out
    assert "step: float16 does not pay on v100" in " ".join(done.out.split())
    assert "1001 -> 1008" in " ".join(done.out.split())


def test_a_level_that_leaves_graphs_alone_is_named_as_the_cause(tmp_path):
    done = audited_script(tmp_path, env={"TF_AMP_OPT_LEVEL": "O0"})
    assert "every graph stays unchanged at level O0" in done.err
    assert "no graph with a matrix product" not in done.err


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


def test_a_function_is_audited_with_the_compiled_ones_that_it_calls():
    @tf.function(jit_compile=True)
    def compiled(x):
        return tf.nn.relu(x @ x)

    alone, within = (
        tf_amp.audit(each, tf.TensorSpec((4096, 4096)), device_profile="h100")
        for each in (compiled, tf.function(lambda x: compiled(x)))
    )
    assert "h100 under XLA" in alone.plan.profile
    assert alone.ratio > 1.1 and within.ratio == pytest.approx(alone.ratio, rel=0.1)
    products = [row for row in within.plan.decisions if row.op == "MatMul"]
    assert products and all(row.slot.node.startswith("compiled/") for row in products)


def test_what_holds_a_compiled_loop_back_counts_each_time_round():
    w = tf.Variable(tf.ones((1024, 1024)))

    def product(times):
        @tf.function(jit_compile=True)
        def compiled(x):
            return tf.while_loop(
                lambda i, x: i < times, lambda i, x: (i + 1, tf.tanh(x @ w)), (0, x)
            )[1]

        spec = tf.TensorSpec((1024, 1024))
        return obstacle_of(
            "MatMul", tf_amp.audit(compiled, spec, device_profile="h100")
        )

    once, often = product(1), product(11)
    assert often.seconds == pytest.approx(11 * once.seconds, rel=0.01)
    assert all("while" in name for name in once.nodes)


def test_the_compiled_functions_of_a_script_are_audited_as_such(tmp_path):
    done = audited_script(tmp_path, "--json", compiled=True, device="h100")
    (found,) = json.loads(done.out)
    direct = tf_amp.audit(
        tf.function(lambda x, w: tf.nn.relu(x @ w), jit_compile=True),
        tf.TensorSpec((512, 1024)),
        tf.TensorSpec((1024, 1001)),
        device_profile="h100",
    )
    assert found["ratio"] == pytest.approx(direct.ratio, rel=0.01)
    assert found["seconds_float32"] == pytest.approx(direct.plan.seconds_before)
