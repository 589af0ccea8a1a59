"""Verification tells what the plan does to the numbers from what it does not."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_amp
from tests import onednn, planted
from tf_amp.tools.verify.cases import UPDATE, _trained
from tf_amp.tools.verify.verification import (
    GRADIENT,
    OUTPUT,
    Difference,
    Judgement,
    TensorCheck,
    Verification,
    write_exclude_list,
)
from tf_amp.tools.verify.verifying import culprits_among, worst_of


def _verify(model, *args, **options):
    return tf_amp.verify(model, *args, **{"opt_level": "O2", **options})


def _layers(found):
    """Return the layers of the culprits, without what tracing puts to their names."""
    parts = (c.layer.rpartition("/")[2] for c in found.culprits or ())
    return [part.removesuffix("_1") for part in parts]


def _most_tries(found, culprits):
    assert found.low_operations is not None
    return 2 * culprits * math.log2(found.low_operations)


def test_a_sound_model_holds_in_both_types():
    for dtype in ("bfloat16", "float16"):
        found = _verify(planted.heads([], 3), planted.rows(), dtype=dtype)
        assert found.ok
        # Without oneDNN, some biases are operations of their own.
        assert found.low_operations == (6 if onednn.IS_ON else 9)
        assert "The numbers hold: 3 of 3" in found.verdict
        assert all(0.0 < c.mixed.relative < found.tolerance for c in found.checks)


def test_bisection_finds_exactly_the_heads_that_overflow():
    culprits = [1, 4, 6]
    model = planted.heads(culprits, 8)
    found = _verify(model, planted.rows(), dtype="float16", bisect=True)
    assert [c.name for c in found.failing] == [str(i) for i in culprits]
    assert {found.verdict_on(c) for c in found.failing} == {Judgement.NOT_FINITE}
    assert _layers(found) == [f"head_{i}" for i in culprits]
    assert found.tries <= _most_tries(found, len(culprits))
    assert not found.ok


def test_bisection_finds_exactly_the_parts_that_cancel():
    culprits = [0, 3]
    model = planted.shifted(culprits, 4)
    found = _verify(
        model,
        planted.rows(),
        dtype="bfloat16",
        bisect=True,
        # Nothing is added up in 16 bits behind the last product but at this level.
        opt_level="O3",
    )
    assert {c.name for c in found.failing} == {str(i) for i in culprits}
    assert set(_layers(found)) == {f"shifted_{i}" for i in culprits}
    assert {c.op for c in found.culprits or ()} == {"AddV2", "Mean", "Sub"}
    assert found.tries <= _most_tries(found, len(found.culprits or ()))


def test_the_exclude_list_of_a_bisection_fixes_the_model(tmp_path):
    # Traced once: each trace calls the layers by other names.
    function = tf.function(planted.heads([1, 2], 4))
    found = _verify(function, planted.rows(), dtype="float16", bisect=True)
    file = tmp_path / "exclude.txt"
    write_exclude_list(file, found.culprits or (), "two heads")
    assert file.read_text().startswith("# two heads\n# functional")
    fixed = _verify(function, planted.rows(), dtype="float16", exclude=[f"@{file}"])
    assert fixed.ok
    assert found.low_operations is not None
    # A product and its bias, of each of two heads.
    excluded = 2 if onednn.IS_ON else 4
    assert fixed.low_operations == found.low_operations - excluded


def test_an_ill_conditioned_model_is_not_blamed_on_the_plan():
    results = tf.random.stateless_normal((8, 10), (1, 2))
    step = planted.training_step(planted.residual(2))
    found = _verify(step, planted.images(), results, dtype="bfloat16")
    beyond = [c for c in found.checks if c.mixed.relative > found.tolerance]
    assert beyond, "the model is not as hard as it is meant to be"
    assert {found.verdict_on(c) for c in beyond} == {Judgement.NOISY}
    assert found.ok
    assert found.verdict.startswith("The numbers hold as far as float32's own do")
    assert "merely rounded to bfloat16" in found.verdict


def test_what_casts_by_hand_move_as_far_is_not_blamed_on_the_plan():
    results = tf.random.stateless_normal((8, 10), (1, 2))
    step = planted.training_step(planted.normalized())
    found = _verify(step, planted.images(), results, dtype="bfloat16", bisect=True)
    by_hand = [c for c in found.checks if found.verdict_on(c) is Judgement.BY_HAND]
    assert any(c.name.endswith("first/beta") for c in by_hand)
    assert all(c.rounded.relative < c.mixed.relative / 4.0 for c in by_hand)
    assert found.ok and found.culprits is None
    assert found.verdict.startswith("The numbers hold as far as by hand: ")
    assert "Casts by hand move it as far: " in found.verdict


def test_a_product_that_cancels_is_a_culprit_though_casts_by_hand_lose_it_too():
    kernel = tf.constant([[1.0], [-1.0]] * (planted.WIDTH // 2))

    @tf.function
    def cancelled(x):
        return tf.matmul(x + 1000.0, kernel, name="cancels")

    found = _verify(cancelled, planted.rows(), dtype="bfloat16", bisect=True)
    (check,) = found.failing
    assert check.by_hand.relative > 0.5
    assert [c.op for c in found.culprits] == ["MatMul"]
    assert f" and casts by hand by {check.by_hand.relative:.2g}." in found.verdict


def _off(relative, **rest):
    return Difference(**{"largest": 1.0, "relative": relative, "cosine": 0.5, **rest})


@pytest.mark.parametrize(
    ("kind", "mixed", "by_hand", "tolerance", "verdict"),
    [
        (GRADIENT, _off(2.0), _off(0.7), 2.0**-5, Judgement.BY_HAND),
        (UPDATE, _off(2.0), _off(0.7), 2.0**-5, Judgement.BY_HAND),
        (GRADIENT, _off(2.2), _off(0.7), 2.0**-5, Judgement.BEYOND),
        (GRADIENT, _off(2.0), _off(0.7, non_finite=1), 2.0**-5, Judgement.BEYOND),
        # What the graph returns.
        (OUTPUT, _off(0.1), _off(0.1), 2.0**-5, Judgement.BEYOND),
        # It becomes zero.
        (GRADIENT, _off(1.0, cosine=0.0), _off(1.0), 2.0**-5, Judgement.BEYOND),
        # A strict tolerance is kept to.
        (GRADIENT, _off(0.02), _off(0.02), 0.01, Judgement.BEYOND),
    ],
)
def test_casts_by_hand_excuse_what_they_move_as_far(
    kind, mixed, by_hand, tolerance, verdict
):
    check = TensorCheck("y", kind, "float32", (4,), mixed, by_hand=by_hand, scale=1.0)
    found = Verification("", (check,), "bfloat16", tolerance)
    assert found.verdict_on(check) is verdict


def test_of_a_gradient_that_is_zero_in_theory_there_is_nothing_to_judge():
    results = tf.random.stateless_normal((8, 10), (1, 2))
    step = planted.training_step(planted.zero_gradients())
    found = _verify(step, planted.images(), results, dtype="bfloat16", bisect=True)
    nothing = {c.name for c in found.checks if found.verdict_on(c) is Judgement.NOTHING}
    assert {"/".join(name.split("/")[-2:]) for name in nothing} == {
        "conv/bias",
        "key/bias",
    }
    assert found.ok and found.culprits is None
    assert "2 tensors are not judged, such as gradient " in found.verdict


def _gradient(name, scale, mixed, rounded):
    """Return the check of a gradient with relative errors."""
    return TensorCheck(
        name,
        GRADIENT,
        "float32",
        (4,),
        Difference(largest=mixed * scale, relative=mixed),
        rounded=Difference(largest=rounded * scale, relative=rounded),
        scale=scale,
    )


@pytest.mark.parametrize(
    ("bias", "verdict"),
    [
        # Float32 does not know it, and it stays small beside the kernel's.
        (_gradient("conv/bias", 1e-8, 1e3, 1.4), Judgement.NOTHING),
        (_gradient("conv/bias", 1e-8, 1.2, 1.4), Judgement.NOTHING),
        # It is alone in its layer.
        (_gradient("shift/value", 1e-8, 1e3, 1.4), Judgement.NOTHING),
        # Float32 does not know it, but it has grown to what counts.
        (_gradient("conv/bias", 1e-8, 1e6, 1.4), Judgement.BEYOND),
        # It is small, but float32 knows it: 16 bits have lost it.
        (_gradient("conv/bias", 1e-5, 1.0, 0.01), Judgement.BEYOND),
        # It is as large as the kernel's.
        (_gradient("conv/bias", 0.1, 2.0, 0.6), Judgement.NOISY),
        (_gradient("conv/bias", 0.1, 3.0, 0.6), Judgement.BEYOND),
    ],
)
def test_what_is_small_is_judged_unless_float32_does_not_know_it_either(bias, verdict):
    kernel = _gradient("conv/kernel", 0.1, 0.01, 0.01)
    found = Verification("step", (kernel, bias), "bfloat16", tolerance=0.031)
    assert found.verdict_on(bias) is verdict
    assert found.ok == (verdict is not Judgement.BEYOND)


@pytest.mark.parametrize("spoiled", [1e-4, 1.0])
def test_what_is_zero_in_float32_may_be_nothing_or_not(spoiled):
    kernel = _gradient("conv/kernel", 0.1, 0.01, 0.01)
    mixed = Difference(largest=spoiled, relative=math.inf)
    dead = TensorCheck("conv/bias", GRADIENT, "float32", (4,), mixed)
    found = Verification("step", (kernel, dead), "bfloat16", tolerance=0.031)
    assert found.ok == (spoiled < 1e-3)


def test_an_output_that_is_small_beside_others_is_judged():
    outputs = (
        dataclasses.replace(_gradient("0", 1.0, 0.01, 0.01), kind=OUTPUT),
        dataclasses.replace(_gradient("1", 1e-8, 1e3, 1.4), kind=OUTPUT),
    )
    found = Verification("step", outputs, "bfloat16", tolerance=0.031)
    assert found.failing == outputs[1:]


@pytest.mark.parametrize("optimizer", [None, keras.optimizers.Adam()])
def test_every_gradient_is_compared_under_the_name_of_its_variable(optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((planted.WIDTH,)),
            keras.layers.Dense(16, activation="relu", name="first"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(4, name="last"),
        ]
    )
    before = [np.array(w) for w in model.get_weights()]
    step = planted.training_step(model, optimizer)
    found = _verify(step, planted.rows(), tf.zeros((16, 4)), dtype="bfloat16")
    gradients = {c.name: c for c in found.checks if c.kind == GRADIENT}
    assert {name.partition("/")[2] for name in gradients} == {
        "first/kernel",
        "first/bias",
        "last/kernel",
        "last/bias",
    }
    assert all(0.0 < c.mixed.relative < 0.05 for c in gradients.values())
    assert all(c.mixed.cosine > 0.99 for c in gradients.values())
    # The same elements are dropped in every run.
    assert all(c.noise.relative < 1e-6 for c in gradients.values())
    for weight, unchanged in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, unchanged)


@pytest.mark.usefixtures("disabled_afterwards")
def test_a_loss_scale_comes_down_before_gradients_are_compared():
    scale = tf_amp.DynamicLossScale(initial=2.0**30, maximum=2.0**30)
    model = planted.heads([], 2)
    with tf_amp.mixed_precision_scope("float16", loss_scale=scale, opt_level="O2"):
        step = planted.training_step(planted.first_of(model))
        found = tf_amp.verify(step, planted.rows(), tf.zeros((16, 8)))
    gradients = [c for c in found.checks if c.kind == GRADIENT]
    assert len(gradients) == 4
    assert found.low_operations and found.ok
    assert all(0.0 < c.mixed.relative < 0.02 for c in gradients)


def test_a_strict_tolerance_is_kept_to_where_nothing_is_ill_conditioned():
    found = _verify(planted.heads([], 2), planted.rows(), tolerance=1e-5)
    assert not found.ok
    assert "beyond the tolerance of 1e-05" in found.verdict


def test_of_several_batches_each_tensor_is_judged_by_its_worst():
    def of(*errors):
        checks = (
            TensorCheck(str(i), OUTPUT, "float32", (1,), Difference(relative=error))
            for i, error in enumerate(errors)
        )
        return Verification("step", tuple(checks), "bfloat16", tolerance=0.1)

    found = worst_of([of(0.0, 0.5), of(0.2, 0.0)])
    assert [check.mixed.relative for check in found.checks] == [0.2, 0.5]
    assert len(found.failing) == 2


def test_an_empty_plan_leaves_nothing_to_verify():
    found = _verify(planted.heads([], 2), planted.rows(), opt_level="O1")
    assert found.low_operations == 0 and not found.is_changed
    assert found.ok
    assert "nothing to verify" in found.verdict


def test_a_fusion_in_float32_is_verified(disabled_afterwards):
    tf_amp.enable(device_profile="cpu-generic", tune="off")

    @tf.function
    def layer(x, w, b):
        return tf.nn.relu(tf.nn.bias_add(tf.tensordot(x, w, 1), b))

    found = tf_amp.verify(layer, tf.ones((8, 64, 64)), tf.ones((64, 64)), tf.ones(64))
    assert found.low_operations == 0 and found.is_changed and found.fused == 0
    assert found.verdict.startswith("The numbers hold")


def test_what_was_fused_while_tracing_is_told_since_both_runs_have_it(
    disabled_afterwards,
):
    tf_amp.enable(device_profile="cpu-generic", tune="off")

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = keras.ops.gelu(x, approximate=False)
        return tape.gradient(y, x)

    found = tf_amp.verify(slope, tf.ones((8, 64)))
    assert found.fused == 1 and not found.is_changed
    assert "Both runs have 1 kernel that tf-amp fused while" in str(found)
    assert "`tf-amp bench` compares losses with those of the program" in found.verdict


def test_what_a_function_has_compiled_is_verified_with_it(disabled_afterwards):
    tf_amp.enable(device_profile="cpu-avx512-bf16", opt_level="O2", tune="off")
    inner = tf.function(lambda x: tf.nn.relu(x @ x), jit_compile=True)
    values = tf.random.stateless_normal((256, 256), seed=(1, 2))
    found = tf_amp.verify(tf.function(lambda x: inner(x) + 1.0), values)
    assert found.low_operations and found.checks[0].mixed.relative > 0.0


def test_arguments_that_are_not_the_functions_are_refused():
    function = tf.function(lambda x, y: x @ y).get_concrete_function(
        tf.TensorSpec((2, 2)), tf.TensorSpec((2, 2))
    )
    with pytest.raises(tf_amp.AmpError, match="takes 2 tensors and received 1"):
        _verify(function, tf.ones((2, 2)))


# A search by halves finds all culprits and no other, in few tries.


class _Trial:
    """Holds once all culprits are cleared, and counts how often it is asked."""

    def __init__(self, culprits):
        self.culprits = frozenset(culprits)
        self.tries = 0

    def holds_with(self, cleared):
        self.tries += 1
        assert len(set(cleared)) == len(cleared)
        return self.culprits <= set(cleared)


@st.composite
def _cases(draw):
    count = draw(st.integers(1, 300))
    culprits = st.lists(st.integers(0, count - 1), min_size=1, max_size=6, unique=True)
    return count, sorted(draw(culprits))


@given(_cases())
@settings(max_examples=300)
def test_culprits_are_found_exactly_and_in_order(case):
    count, culprits = case
    trial = _Trial(culprits)
    assert culprits_among(range(count), trial.holds_with) == tuple(culprits)
    # Each takes a search by halves and one question whether there are more; besides it
    # is asked once whether all of them together would do, and whether any is needed.
    assert trial.tries <= 2 + len(culprits) * (math.ceil(math.log2(count)) + 1)


def test_nothing_is_to_blame_where_all_is_well():
    assert culprits_among(range(9), _Trial([]).holds_with) == ()


def test_nobody_is_to_blame_for_what_clearing_all_does_not_fix():
    assert culprits_among(range(9), _Trial([10]).holds_with) is None


def test_one_of_two_that_fix_it_alone_is_enough():
    found = culprits_among(range(20), lambda cleared: 3 in cleared or 15 in cleared)
    assert found == (3,)


@pytest.mark.parametrize(
    ("moment", "trained"),
    [
        ("adam/net_dense_1_bias_momentum", "net/dense_1_1/bias"),
        ("adam/net_dense_bias_momentum", "net/dense/bias"),
        ("Adam/m/net/dense/bias", "net/dense/bias"),
        ("adam/iteration", "adam/iteration"),
    ],
)
def test_a_moment_has_the_name_of_what_it_trains(moment, trained):
    names = (moment, "net/dense/bias", "net/dense_1_1/bias", "net/dense_2/bias")
    assert _trained(moment, dict(enumerate(names))) == trained
