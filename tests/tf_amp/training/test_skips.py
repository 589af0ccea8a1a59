"""What overflowed is skipped, and nothing else, and each call is counted once.

Each row is a step of a training, whose every outcome the oracle knows: `skip_oracle`.
"""

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


def function(*body):
    return Block("function", body)


def loop(*body, rounds=2):
    return Block("loop", body, rounds)


def penalty(place, *others):
    """Return the gradient of a gradient, of which both may overflow, and of others."""
    losses = Loss("penalty", place=place), *others
    return Take(losses, (tuple(range(len(losses))),)), Apply()


# Gradients of two optimizers' weights by inputs of their own; the same with decay.
FIRST, SECOND = Loss(), Loss(weight=2, input=1)
BOTH = Take((FIRST,)), Take((SECOND,))
BOTH_IN_FUNCTIONS = tuple(map(function, BOTH))
PERSISTENT = Take((FIRST, SECOND), ((0,), (1,)), persistent=True)
DECAYED = Change("decayed", 0), Change("decayed", 1)
# The one taken last is applied first.
APPLIED = Apply(1, (1,)), Apply(0, (0,))
DECAYED_APPLIED = *DECAYED, Apply(1, (3,)), Apply(0, (2,))
APPLIED_IN_FUNCTIONS = (
    function(Change("decayed", 1), Apply(1, (2,))),
    function(Change("decayed", 0), Apply(0, (3,))),
)
# How the step is run, and what it does.
ROWS = {
    "one gradient": ("function eager compiled", (Take(), Apply())),
    "two gradients": ("function eager compiled", (*BOTH, *APPLIED)),
    "with decay": ("function eager", (*BOTH, *DECAYED_APPLIED)),
    "taken in functions": ("function eager", (*BOTH_IN_FUNCTIONS, *DECAYED_APPLIED)),
    "applied in functions": ("function eager", (*BOTH, *APPLIED_IN_FUNCTIONS)),
    "both in functions": (
        "function eager",
        (*BOTH_IN_FUNCTIONS, *APPLIED_IN_FUNCTIONS),
    ),
    "one tape": ("function eager", (PERSISTENT, *APPLIED)),
    "one tape, applied in functions": (
        "function eager",
        (PERSISTENT, *APPLIED_IN_FUNCTIONS),
    ),
    "averaged": ("function eager", (*BOTH, Change("summed", 0, 1), Apply(0, (2,)))),
    "clipped": (
        "function",
        (*BOTH, Change("normed", 0, 1), Change("repaired", 2), Apply(0, (3,))),
    ),
    "of a function, clipped": (
        "function",
        (function(Take(), Change("repaired")), Write(1), Apply(0, (1,))),
    ),
    "of a function in company": (
        "function eager",
        (function(Take()), Take((Loss(weight=1, input=1),)), Apply(0, (0, 1))),
    ),
    "of a tape around a function": (
        "function",
        (Take(asked=(), persistent=True), function(Ask()), Write()),
    ),
    "of a function called twice": (
        "function",
        (Block("function", (Take(),), 2), Write(), Apply()),
    ),
    "of a branch": ("function eager", (Block("branch", (Take(),)), Apply())),
    "of a loop": ("function", (loop(Take()), Write(), Apply())),
    "of a loop, clipped": (
        "function",
        (loop(Take(), Change("repaired")), Write(1), Apply(0, (1,))),
    ),
    "several steps": (
        "function eager",
        tuple(
            part
            for i in range(3)
            for part in (
                function(Take((Loss(input=i),))),
                Change("decayed", 2 * i),
                Apply(0, (2 * i + 1,)),
            )
        ),
    ),
    "steps in a loop": ("function eager", (loop(Take(), Apply()),)),
    "a step, then one by a function": (
        "function eager",
        (Take(), Apply(), function(Take()), Apply(0, (1,))),
    ),
    "written by hand": ("function eager compiled", (Take(), Write(), Apply())),
    "a tape that is asked for each weight": (
        "function eager",
        (
            Take(
                (Loss(), Loss(weight=1, input=1), Loss(weight=2, input=2)),
                ((0,), (1,), (2,)),
                persistent=True,
            ),
            Apply(0, (0, 1)),
            Apply(1, (2,)),
        ),
    ),
    **{
        f"a tape that is asked again in a {kind}": (
            ways,
            (
                Take((FIRST, SECOND), ((0,),), persistent=True),
                Block(kind, (Ask(0, (1,)),)),
                *DECAYED_APPLIED,
            ),
        )
        for kind, ways in (
            ("function", "function compiled"),
            ("branch", "function"),
            ("loop", "function compiled"),
        )
    },
    "taken once more after the step": ("", (Take(), Apply(), function(Take()))),
    "a tape that is asked in a loop alone": (
        "function",
        (Take(asked=(), persistent=True), loop(Ask(), rounds=3), Apply()),
    ),
    **{
        f"gradients of gradients, {place}": (
            "function eager compiled" if place == "here" else "function eager",
            penalty(place),
        )
        for place in skip_recipes.PLACES
    },
    **{
        f"gradients of gradients in company, {place}": (
            "function eager",
            penalty(place, Loss("square")),
        )
        for place in ("here", "function", "loop")
    },
}
BAD, OTHER_BAD = ((0, 0, "inf"),), ((0, 1, "nan"),)
PLANTS = ((), BAD, OTHER_BAD, (*BAD, *OTHER_BAD), ())
WAYS = {"function": {}, "eager": {"traced": False}, "compiled": {"compiled": True}}


def row_of(name, way, **more):
    given = {"plants": PLANTS, "untaken": (False,) * len(PLANTS), **WAYS[way], **more}
    return Recipe(ROWS[name][1], ("momentum", "adam"), **given)


CASES = [(name, way) for name, (ways, _) in ROWS.items() for way in ways.split()]
# Of gradients in company the last of which overflowed, the other's step may be either.
MAY_BE_EITHER = ("with decay", "taken in functions")


@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_rule_holds_for(name, way):
    outcome = check(row_of(name, way))
    assert not outcome.failure
    assert outcome.overflows and outcome.skipped and outcome.taken
    assert outcome.either == (way == "eager" and name in MAY_BE_EITHER)


# What depends on a branch that is taken or not, or overflows by the loss scale alone.
UNTAKEN = (False, True, False, False)


@pytest.mark.parametrize(
    ("kind", "plants"),
    [("half", [((0, 0, "large"),)] * 4), ("penalty", [(), BAD, BAD, ()])],
)
def test_the_rule_holds_for_a_tape_that_is_asked_in_a_branch_or_not(kind, plants):
    body = (
        Take((Loss(kind),), asked=(), persistent=True),
        Block("branch", (Ask(),)),
        Apply(),
    )
    outcome = check(Recipe(body, plants=tuple(plants), untaken=UNTAKEN))
    assert not outcome.failure and outcome.overflows and outcome.taken


@settings(max_examples=3)
@given(recipes())
def test_the_rule_holds_for_random_programs(recipe):
    assert not check(recipe).failure


# Those of replicas, which cannot meet in functions, branches and loops.
ON_REPLICAS = {
    "one gradient": "function",
    "two gradients": "function",
    "taken in functions": "function eager",
    "of a function, clipped": "function",
    "of a function in company": "function eager",
    "of a tape around a function": "function",
    "of a branch": "function",
    "of a loop": "function",
    "of a loop, clipped": "function",
    "several steps": "function",
    "gradients of gradients, here": "function eager",
    "gradients of gradients, function": "function eager",
    "taken once more after the step": "function eager",
}
OF_REPLICAS = ((), BAD, ((1, 0, "inf"),), (*BAD, (1, 0, "inf")), ((1, 1, "inf"),), ())


def results_in_a_process(recipes):
    """Return what is wrong with each, or "right", from a process of their own."""
    code = f"""
    import gc

    from tests.skip_check import check, prepare
    from tests.skip_recipes import *

    # The model of a training outlasts it.
    gc.disable()
    prepare()
    for recipe in {recipes}:
        print(check(recipe).failure or "right")
    """
    return run_forked(code, env={"TF_AMP_TUNE": "off"}).lines()


@pytest.mark.long
def test_the_rule_holds_on_replicas():
    given = {"plants": OF_REPLICAS, "untaken": (False,) * len(OF_REPLICAS)}
    rows = {
        (name, way): row_of(name, way, replicas=2, **given)
        for name, ways in ON_REPLICAS.items()
        for way in ways.split()
    }
    results = results_in_a_process([*rows.values()])
    assert dict(zip(rows, results, strict=True)) == dict.fromkeys(rows, "right")


@pytest.mark.parametrize("way", ["function", "eager"])
def test_a_replica_that_is_ahead_makes_the_others_meet_no_earlier(way):
    # The first one has traced the function when the second one makes its first step.
    given = {"plants": OF_REPLICAS[2:], "untaken": (False,) * 4}
    row = row_of("a step, then one by a function", way, replicas=2, **given)
    assert results_in_a_process([row]) == ["right"]


def test_the_rule_holds_on_one_replica():
    names = ("one gradient", "of a function, clipped", "of a tape around a function")
    assert results_in_a_process(
        [row_of(name, "function", replicas=1) for name in names]
    ) == ["right"] * len(names)


# As many finite calls as let the scale grow, which begins to count anew then.
GROWN = (*[Take()] * INTERVAL, Change("doubled"), Apply(values=(INTERVAL,)))
TWO_TRAININGS = {
    "an overflow that replicas have noted": (
        Recipe((function(Take()),), plants=(BAD,), replicas=2),
        Recipe(
            (function(Take()), Change("normed"), Apply(0, (1,))),
            plants=((), ((1, 0, "inf"),), ()),
            replicas=2,
            traced=False,
        ),
    ),
    "an overflow, while the scale grows before the first step": (
        Recipe(plants=(BAD,), traced=False),
        Recipe(GROWN, plants=((),), traced=False),
    ),
    "an overflow of gradients of data, while the scale grows": (
        Recipe((Take((Loss("penalty"),), asked=()),), plants=(BAD,), traced=False),
        Recipe(GROWN, plants=((),), traced=False),
    ),
    "an overflow of gradients of data that replicas have noted": (
        Recipe(
            (Take((Loss("penalty", place="function"),), asked=()),),
            plants=(BAD,),
            replicas=2,
            traced=False,
        ),
        Recipe((Take(), Apply()), plants=((),), replicas=2, traced=False),
    ),
}


@pytest.mark.parametrize("which", TWO_TRAININGS)
def test_of_another_training_no_step_is_skipped_for(which):
    rows = [dataclasses.replace(r, untaken=(False,) * 3) for r in TWO_TRAININGS[which]]
    assert results_in_a_process(rows) == ["right"] * 2


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
