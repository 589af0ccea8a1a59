"""Random programs skip what overflowed, and nothing else, and count each call once."""

import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from tests import skip_recipes, skips
from tests.forking import run_forked
from tests.scaling import scaled_by
from tests.skip_check import check
from tests.skip_oracle import INTERVAL
from tests.skip_recipes import (
    Apply,
    Ask,
    Block,
    Change,
    Loss,
    Recipe,
    Take,
    Write,
    recipes,
)
from tf_amp import DynamicLossScale, NoOpLossScale

# One row each of what has been got wrong, or may be.
PENALTY = Take((Loss("penalty", place="function"),))
BAD, REPLICA_BAD = ((0, 0, "inf"),), ((1, 0, "inf"),)
LATE = Take((Loss("half"),), asked=(), persistent=True)
ROWS = {
    "a function called twice": Recipe((Block("function", (Take(),), 2), Apply())),
    "a clipped gradient of a loop": Recipe(
        (Block("loop", (Take(), Change("repaired")), 2), Write(), Apply())
    ),
    "a tape that is asked in a branch": Recipe(
        (LATE, Block("branch", (Ask(),)), Apply()),
        plants=(((0, 0, "large"),),) * 4,
        untaken=(False, True, False, False),
    ),
    "eager gradients applied in a function": Recipe(
        (Take(), Block("function", (Apply(),))), traced=False
    ),
    "eager gradients of gradients": Recipe((PENALTY, Apply()), traced=False),
}
ON_REPLICAS = {
    "an overflow of one replica within a function": Recipe(
        (Block("function", (Take(), Change("repaired"))), Write(), Apply())
    ),
    "gradients of gradients": Recipe((PENALTY, Apply())),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_rule_holds_for(row):
    outcome = check(ROWS[row])
    assert not outcome.failure
    assert outcome.overflows
    assert outcome.skipped + outcome.either
    assert outcome.taken


@settings(max_examples=3)
@given(recipes())
def test_the_rule_holds_for_random_programs(recipe):
    assert not check(recipe).failure


def test_the_rule_holds_on_replicas():
    of_replicas = {"replicas": 2, "untaken": (False,) * 3}
    rows = [
        dataclasses.replace(recipe, plants=((), plants, ()), **of_replicas)
        for recipe, plants in zip(ON_REPLICAS.values(), (BAD, REPLICA_BAD), strict=True)
    ]
    code = f"""
    from tests.skip_check import check, prepare
    from tests.skip_recipes import *

    prepare()
    for recipe in {rows}:
        outcome = check(recipe)
        assert outcome.overflows, recipe
        print(outcome.failure or "right")
    """
    assert run_forked(code, env={"TF_AMP_TUNE": "off"}).lines() == ["right"] * len(rows)


# As many finite calls as let the scale grow, which begins to count anew then.
GROWN = (*[Take()] * INTERVAL, Change("doubled"), Apply(values=(INTERVAL,)))
TWO_TRAININGS = {
    "an overflow that replicas have noted": (
        Recipe((Block("function", (Take(),)),), plants=(BAD,), replicas=2),
        Recipe(traced=False),
    ),
    "an overflow, while the scale grows before the first step": (
        Recipe(plants=(BAD,), traced=False),
        Recipe(GROWN, plants=((),), traced=False),
    ),
    "an overflow of gradients of data, while the scale grows": (
        Recipe((Take((Loss("penalty"),), asked=()),), plants=(BAD,), traced=False),
        Recipe(GROWN, plants=((),), traced=False),
    ),
}


@pytest.mark.parametrize("which", TWO_TRAININGS)
def test_of_another_training_no_step_is_skipped_for(which):
    rows = [dataclasses.replace(r, untaken=(False,) * 2) for r in TWO_TRAININGS[which]]
    code = f"""
    import gc

    from tests.skip_check import check, prepare
    from tests.skip_recipes import *

    # The first model outlasts its training.
    gc.disable()
    prepare()
    for recipe in {rows}:
        print(check(recipe).failure or "right")
    """
    assert run_forked(code, env={"TF_AMP_TUNE": "off"}).lines() == ["right"] * len(rows)


def test_finite_steps_of_another_training_hide_no_overflow():
    weights = [tf.Variable(1.0), tf.Variable(1.0)]
    for weight, x in zip(weights, (1.0, np.inf), strict=True):
        optimizer = keras.optimizers.SGD(0.5)
        with scaled_by(DynamicLossScale()):
            with tf.GradientTape() as tape:
                loss = weight * x
            gradient = tape.gradient(loss, weight)
            optimizer.apply([tf.clip_by_value(gradient, -1.0, 1.0)], [weight])
    assert [weight.numpy() for weight in weights] == [0.5, 1.0]


def test_a_step_that_is_not_skipped_breaks_the_rule():
    failure = check(Recipe(plants=(BAD,)), NoOpLossScale()).failure
    assert "weight 0 was to stay" in failure


def test_a_seed_names_one_recipe_that_prints_as_what_rebuilds_it():
    drawn = [skips.recipe_of(seed) for seed in range(8)]
    assert drawn == [skips.recipe_of(seed) for seed in range(8)]
    assert [eval(repr(recipe), vars(skip_recipes)) for recipe in drawn] == drawn
    assert [recipe.replicas for recipe in drawn] == [0, 0, 0, 2, 0, 0, 0, 1]


def test_every_part_of_a_training_is_drawn():
    drawn = " ".join(repr(skips.recipe_of(seed)) for seed in range(40))
    words = set(re.findall(r"\w+", drawn))
    statements = (Take, Ask, Change, Apply, Write, Block, Loss)
    assert words >= {each.__name__ for each in statements}
    lists = ("PLACES", "KINDS", "CHANGES", "PLANTS")
    named = {word for name in lists for word in getattr(skip_recipes, name)}
    # What is not shown is the default.
    assert words >= named - {"here", "linear", "doubled"}
    assert words >= {"momentum", "adam", "branch", "loop", "untaken"}
