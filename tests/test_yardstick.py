"""No program's error passes three times what casting its products by hand gives."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tests import recipes as recipes_module
from tests.hand_casts import rounded
from tests.placing import has_kernel
from tests.programs import captured_as_by_grappler
from tests.recipe_parts import INPUTS, LAYERS, LOOPS
from tests.recipe_training import LOSSES, TRAINING
from tests.recipes import Part, Recipe, build, recipe_of, recipes, smallest_of
from tests.rule import Finding, judge
from tests.soundness import FLOAT32, LOW_DTYPES
from tests.yardstick_check import PLANS, check, contest_of, plan_of
from tf_amp._tensorflow_private.graphs import cluster_of
from tf_amp.tracing.grappler_preview import on_device

LINEAR = Part("linear")
# One row each of what is easily got wrong in 16 bits.
ROWS = {
    "Euler steps in a loop": Recipe(layers=(LINEAR, Part("euler", 100, 0.02))),
    "Euler steps in a functional loop": Recipe(
        layers=(LINEAR, Part("euler", 100, 0.02)), v2=True
    ),
    "small residual steps from the input": Recipe(layers=(Part("residual", 24, 0.02),)),
    "small residual steps from a product": Recipe(
        layers=(LINEAR, Part("residual", 24, 0.02))
    ),
    "inner steps of learning to learn": Recipe(
        layers=(Part("inner_steps", 8, 0.01),),
        loss="squared_error",
        training="gradients",
    ),
    "a sum of activations": Recipe(layers=(Part("sum_of_activations", 300),)),
    "a sum of gradients": Recipe(layers=(Part("sum_of_gradients", 300),)),
    "new values of weights that are read again": Recipe(
        layers=(Part("tanh"),), loss="squared_error", training="descent", rate=0.01
    ),
    "momentum by hand": Recipe(
        layers=(Part("tanh"),), loss="squared_error", training="momentum", ref=True
    ),
    "an average of weights that is read again": Recipe(
        layers=(Part("tanh"),), loss="squared_error", training="moving_average"
    ),
    "training in a loop on a reference": Recipe(
        layers=(Part("training_loop", 50, 0.1),), ref=True
    ),
    "training in a loop": Recipe(layers=(Part("training_loop", 50, 0.1),)),
    "a logarithm of clipped probabilities": Recipe(
        loss="clipped_logarithm", training="gradients"
    ),
    "a logarithm of the slope of tanh": Recipe(
        loss="squashing_correction", training="gradients"
    ),
    "a logarithm of what 0.999 leaves": Recipe(loss="nearly_one", training="gradients"),
    "a squared error near 500": Recipe(
        layers=(Part("linear", amount=500.0),),
        loss="squared_error",
        target=500.0,
        training="gradients",
    ),
    "a squared error near 1000": Recipe(
        layers=(Part("linear", amount=1000.0),), loss="squared_error", target=1000.0
    ),
    "raw numbers around 2000": Recipe(inputs="shifted"),
    "discounted returns of data": Recipe(inputs="returns"),
    "discounted returns of products": Recipe(layers=(Part("discounted", 200),)),
    "whole parts of data": Recipe(inputs="whole"),
    "data rounded to whole numbers": Recipe(inputs="nearest"),
    "remainders of data": Recipe(inputs="remainder"),
    "equality of ids": Recipe(inputs="equality"),
    "angles of positions": Recipe(inputs="angles"),
    "angles by an outer product": Recipe(inputs="outer_angles"),
    "a counter that a cast waits for": Recipe(inputs="counted"),
    "the gradient of a softmax": Recipe(
        inputs="equality", layers=(Part("attention"),), loss="mean", training="descent"
    ),
    "the gradient of a normalization": Recipe(
        layers=(Part("batch_normalization"), LINEAR), loss="mean", training="descent"
    ),
    "gates of single rows": Recipe(
        inputs="one_hot", layers=(Part("sum_of_gradients", 50),), width=64
    ),
    "a biased product that each iteration reads": Recipe(
        inputs="one_hot",
        layers=(LINEAR, Part("sum_of_gradients", 50), LINEAR),
        width=128,
    ),
    "a sum with a biased product that each iteration reads": Recipe(
        inputs="one_hot",
        layers=(LINEAR, Part("outer"), Part("sum_of_gradients", 50), LINEAR),
        width=256,
        v2=True,
    ),
    "a step size that 16 bits do not hold": Recipe(
        layers=(Part("inner_steps", 5, 0.3),), loss="mean", width=128, positive=True
    ),
    "a factor between products that 16 bits do not hold": Recipe(
        layers=(LINEAR, Part("scaled", amount=0.3), LINEAR),
        loss="squared_error",
        training="gradients",
        width=128,
    ),
    "a mean behind softplus": Recipe(
        inputs="remainder", layers=(Part("softplus"), Part("relu")), loss="mean"
    ),
    "gradients that are alike but for small products, before a softmax": Recipe(
        layers=(
            Part("power_iteration", 12),
            Part("softmax"),
            Part("residual", 8, 0.01),
        ),
        loss="mean",
        training="gradients",
        width=64,
    ),
    "a chain of gradients of single rows": Recipe(
        inputs="one_hot",
        layers=(Part("inner_steps", 4, 0.1),),
        loss="mean",
        training="momentum",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_rule_holds_for(row: str) -> None:
    outcome = check(ROWS[row], PLANS)
    assert outcome.rewritten, "nothing was tried"
    assert not outcome.failures, _reported(outcome.failures)


def test_the_rule_holds_for_random_programs() -> None:
    totals = np.zeros(4)

    @settings(max_examples=5)
    @given(recipes())
    def run(recipe: Recipe) -> None:
        outcome = check(recipe, (plan_of(recipe),))
        counted = (1, outcome.rewritten > 0, outcome.results, outcome.undecided)
        totals[:] += counted
        assert not outcome.failures, _reported(outcome.failures)

    run()
    programs, rewritten, results, undecided = totals
    assert rewritten > programs / 2
    assert undecided < results / 20


def _reported(failures: dict) -> str:
    return "; ".join(f"{plan}: {finding}" for plan, finding in failures.items())


@pytest.mark.parametrize("low_dtype", LOW_DTYPES)
def test_casting_by_hand_is_no_breach(low_dtype: str) -> None:
    recipe = Recipe(
        layers=(Part("tanh"), Part("euler", 20, 0.02), Part("residual", 6, 0.05)),
        loss="squared_error",
        training="descent",
    )
    contest = contest_of(recipe)
    for results in (False, True):
        hand = contest.by_hand(low_dtype, results=results)
        assert all(finding.ok for finding in contest.judge(hand, low_dtype))


@pytest.mark.parametrize("low_dtype", LOW_DTYPES)
def test_a_state_that_is_rounded_is_a_breach(low_dtype: str) -> None:
    contest = contest_of(ROWS["Euler steps in a loop"])
    planted = contest.by_hand(low_dtype, results=False)
    for node in list(planted.node):
        if node.op == "NextIteration" and node.attr["T"].type == FLOAT32:
            _plant_rounding(planted, node.name, LOW_DTYPES[low_dtype])
    assert not all(finding.ok for finding in contest.judge(planted, low_dtype))


def _plant_rounding(graph_def: GraphDef, name: str, low: int) -> None:
    """Round what a node reads first."""
    reader = next(node for node in graph_def.node if node.name == name)
    reader.input[0] = rounded(graph_def, reader.input[0], f"{name}/value", low)


def test_products_that_sum_nothing_are_not_rounded_by_hand() -> None:
    for recipe in (Recipe(layers=(Part("outer"),)), Recipe(layers=(Part("narrow"),))):
        contest = contest_of(recipe)
        plain = contest.by_hand("bfloat16", results=True)
        assert not [node for node in plain.node if node.op == "Cast"]


def test_biases_and_activations_are_not_rounded_by_hand() -> None:
    contest = contest_of(Recipe(layers=(Part("relu"),)))
    assert "_FusedMatMul" in {n.op for n in contest.captured.graph_def.node}
    hand = contest.by_hand("bfloat16", results=True)
    nodes = {node.name: node for node in hand.node}
    bias = next(node for node in hand.node if node.op == "BiasAdd")
    rounded = [nodes[name.partition(":")[0]].op for name in bias.input]
    assert rounded == ["Cast", "ReadVariableOp"]


def test_what_grappler_fuses_hangs_on_the_device_of_the_nodes() -> None:
    program = build(Recipe(layers=(Part("tanh"),)), kind="CPU").program
    # TensorFlow for CPUs knows no kernel of GPUs, so that all is put there.
    elsewhere = on_device(program.graph_def, "GPU")
    for graph_def, count in ((program.graph_def, 1), (elsewhere, 0)):
        given = dataclasses.replace(program, graph_def=graph_def)
        captured = captured_as_by_grappler(given, cluster=cluster_of("9.0"))
        ops = [node.op for node in captured.graph_def.node]
        assert ops.count("_FusedMatMul") == count


@pytest.mark.parametrize(
    ("dtype", "is_there"), [(tf.float32, True), (tf.string, False)]
)
def test_a_node_goes_where_there_is_a_kernel_for_its_types(dtype, is_there) -> None:
    node = NodeDef(op="MatMul")
    node.attr["T"].type = dtype.as_datatype_enum
    assert has_kernel(node, "CPU") == is_there
    # TensorFlow for CPUs has kernels for any device of what only passes values on.
    assert has_kernel(NodeDef(op="NoOp"), "GPU")


def test_all_of_a_program_is_placed_on_the_device_that_it_runs_on() -> None:
    recipe = Recipe(layers=(Part("euler", 10, 0.02),), v2=True)
    graph_def = build(recipe, kind="CPU").program.graph_def
    bodies = [f.node_def for f in graph_def.library.function]
    assert bodies
    nodes = itertools.chain(graph_def.node, *bodies)
    assert {node.device for node in nodes} == {"/device:CPU:0"}


def one(value: float) -> list[np.ndarray]:
    return [np.full(4, value, np.float32)] * 6


def judged(value: float, hand: float, again: float | None = None) -> Finding:
    second = None if again is None else one(again)
    hands = [(one(hand), one(1.0))]
    finding = judge("role", (one(value), one(1.0)), hands, 10, second)
    assert finding is not None
    return finding


def test_three_times_the_error_by_hand_is_the_limit() -> None:
    assert judged(1.0299, 1.01).ok
    assert not judged(1.0301, 1.01).ok


def test_what_is_exact_by_hand_must_be_exact() -> None:
    assert judged(1.0, 1.0).ok
    assert judged(np.nextafter(np.float32(1), np.float32(2)), 1.0).ok
    assert not judged(1.0 + 2.0**-12, 1.0).ok


def test_an_error_below_what_two_runs_in_float32_differ_is_none() -> None:
    assert judged(1.0 + 2.0**-12, 1.0, again=1.0 + 2.0**-12).ok
    assert not judged(1.0 + 2.0**-12, 1.0, again=1.0 + 2.0**-16).ok
    counted = [np.arange(8)] * 6, [np.arange(8) // 4 * 4] * 6
    exact = [(counted[0], counted[0])]
    assert not judge("role", (counted[1], counted[0]), exact, 10).ok
    assert judge("role", (counted[1], counted[0]), exact, 10, counted[1]).ok


def test_what_is_not_finite_is_a_breach_unless_it_is_so_by_hand() -> None:
    assert not judged(np.inf, 1.01).ok
    infinite = [(one(np.inf), one(1.0))]
    assert judge("role", (one(np.inf), one(1.0)), infinite, 10) is None


def test_of_integers_three_times_as_many_may_differ_and_one_more() -> None:
    def differing(count: int) -> list[np.ndarray]:
        return [(np.arange(100) < count).astype(np.int32)] * 6

    none = differing(0)
    for hand, most in ((0, 0), (1, 3), (4, 12)):
        hands = [(differing(hand), none)]
        assert judge("role", (differing(most), none), hands, 10).ok
        assert not judge("role", (differing(most + 1), none), hands, 10).ok


def test_a_seed_names_one_recipe_that_prints_as_what_rebuilds_it() -> None:
    drawn = [recipe_of(seed) for seed in range(8)]
    assert drawn == [recipe_of(seed) for seed in range(8)]
    assert len(set(drawn)) > 4
    assert [eval(repr(recipe), vars(recipes_module)) for recipe in drawn] == drawn


def test_every_part_of_a_recipe_is_drawn() -> None:
    drawn = set()
    for seed in range(100):
        recipe = recipe_of(seed)
        drawn |= {recipe.inputs, recipe.loss, recipe.training}
        drawn |= {part.kind for part in recipe.layers}
    assert drawn == {"", *INPUTS, *LAYERS, *LOOPS, *LOSSES, *TRAINING}


def test_a_failing_seed_is_shrunk_to_the_part_that_fails() -> None:
    def breaks(recipe: Recipe) -> bool:
        return any(part.kind == "euler" for part in recipe.layers)

    number = next(seed for seed in range(100) if breaks(recipe_of(seed)))
    assert smallest_of(recipes(), number, breaks) == Recipe(
        layers=(Part("euler", 10, 0.01),)
    )


def test_samples_differ_in_data_and_weights() -> None:
    dish = build(Recipe())
    first, second = dish.sample(0), dish.sample(1)
    for ours, theirs in ((first.feeds, second.feeds), (first.initial, second.initial)):
        assert ours.keys() == theirs.keys()
        assert all((ours[name] != theirs[name]).any() for name in ours)


def test_plans_for_large_tensors_are_not_empty() -> None:
    contest = contest_of(Recipe(layers=(Part("tanh"), Part("tanh"))))
    for plan in PLANS:
        rewritten = contest.rewritten(plan.settings(0))
        assert rewritten is not contest.captured.graph_def, str(plan)
