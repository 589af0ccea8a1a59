"""Training programs as descriptions that print, rebuild, and shrink.

A recipe says how a step takes gradients and what it does with them. Numbers in it that
name a tape or a gradient count among those in sight, and begin anew beyond the last;
what has nothing in sight is left out. So hypothesis may take any part of it away.
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from tests.recipes import Brief

# Rows of what a step is given; weights, of which the last is written by hand.
INPUTS, WEIGHTS = 3, 4
BY_HAND = WEIGHTS - 1
PLACES = ("here", "function", "branch", "loop")
KINDS = ("linear", "half", "square", "penalty")
CHANGES = ("doubled", "decayed", "summed", "normed", "repaired")
PLANTS = ("inf", "nan", "large")


@dataclasses.dataclass(frozen=True, repr=False)
class Loss(Brief):
    """A loss of one weight: its kind, and where inner gradients of it are taken."""

    kind: str = "linear"
    weight: int = 0
    input: int = 0
    place: str = "here"


@dataclasses.dataclass(frozen=True, repr=False)
class Take(Brief):
    """Record losses on a tape, and ask it at once, for one or more losses each time."""

    losses: tuple[Loss, ...] = (Loss(),)
    asked: tuple[tuple[int, ...], ...] = ((0,),)
    persistent: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Ask(Brief):
    """Ask a persistent tape for gradients of some of its losses."""

    tape: int = 0
    losses: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, repr=False)
class Change(Brief):
    """Compute something from a gradient, and perhaps another one."""

    how: str = "doubled"
    value: int = 0
    other: int = 0


@dataclasses.dataclass(frozen=True, repr=False)
class Apply(Brief):
    """Let an optimizer apply a gradient to each of its weights."""

    optimizer: int = 0
    values: tuple[int, ...] = (0,)


@dataclasses.dataclass(frozen=True, repr=False)
class Write(Brief):
    """Assign to the weight that no optimizer has."""

    value: int = 0


@dataclasses.dataclass(frozen=True, repr=False)
class Block(Brief):
    """Statements in a function, a branch or a loop.

    What they make is added up where they run more than once, and zero where never.

    Attributes:
      kind: "function", "branch" or "loop".
      body: statements.
      rounds: how often they run; a function is called as often.
      given: whether a function within a graph is given what it uses, or captures it.
    """

    kind: str = "function"
    body: tuple[Statement, ...] = ()
    rounds: int = 1
    given: bool = False


Statement = Take | Ask | Change | Apply | Write | Block


@dataclasses.dataclass(frozen=True, repr=False)
class Recipe(Brief):
    """What a program is made of.

    Attributes:
      body: statements of a step.
      optimizers: "descent", "momentum" or "adam"; the first has two weights.
      plants: for each step what is wrong with which input of which replica.
      untaken: for each step whether branches are not taken.
      replicas: 1, or 2 of a `MirroredStrategy`; 0 for none.
      traced: whether the whole step is a function.
      compiled: whether XLA compiles that.
    """

    body: tuple[Statement, ...] = (Take(), Apply())
    optimizers: tuple[str, ...] = ("descent",)
    plants: tuple[tuple[tuple[int, int, str], ...], ...] = ((), ((0, 0, "inf"),))
    untaken: tuple[bool, ...] = (False, False)
    replicas: int = 0
    traced: bool = True
    compiled: bool = False


@st.composite
def recipes(draw: st.DrawFn, replicas: int = 0) -> Recipe:
    """Draw a recipe; simpler ones come first."""
    body = draw(_bodies(2, st.lists(_takes(), min_size=1, max_size=2)))
    steps = draw(st.integers(3, 6))
    plants = st.lists(_plants(max(replicas, 1)), max_size=2)
    return Recipe(
        body=body,
        optimizers=tuple(draw(st.lists(_optimizers, min_size=1, max_size=2))),
        plants=tuple(tuple(draw(plants)) for _ in range(steps)),
        untaken=tuple(draw(_rarely) for _ in range(steps)),
        replicas=replicas,
        traced=draw(st.booleans()),
    )


_optimizers = st.sampled_from(("descent", "momentum", "adam"))
_rarely = st.sampled_from((False, False, False, True))
_numbers = st.integers(0, 5)


def _plants(replicas: int) -> st.SearchStrategy[tuple[int, int, str]]:
    inputs = st.integers(0, INPUTS - 1)
    kinds = st.sampled_from(PLANTS)
    return st.tuples(st.integers(0, replicas - 1), inputs, kinds)


@st.composite
def _takes(draw: st.DrawFn) -> Take:
    losses = st.builds(
        Loss,
        st.sampled_from(KINDS),
        st.integers(0, WEIGHTS - 1),
        st.integers(0, INPUTS - 1),
        st.sampled_from(PLACES),
    )
    some = st.lists(_numbers, min_size=1, max_size=2).map(tuple)
    return Take(
        tuple(draw(st.lists(losses, min_size=1, max_size=3))),
        tuple(draw(st.lists(some, max_size=2))),
        draw(st.booleans()),
    )


def _statements(depth: int) -> st.SearchStrategy[Statement]:
    values = st.lists(_numbers, min_size=1, max_size=2).map(tuple)
    simple: list[st.SearchStrategy[Statement]] = [
        st.builds(Apply, st.integers(0, 1), values),
        st.builds(Write, _numbers),
        st.builds(Change, st.sampled_from(CHANGES), _numbers, _numbers),
        st.builds(Ask, _numbers, values),
        _takes(),
    ]
    blocks = [_blocks(depth - 1)] * 3 if depth else []
    return st.one_of(*simple, *blocks)


@st.composite
def _bodies(
    draw: st.DrawFn, depth: int, first: st.SearchStrategy[list[Take]]
) -> tuple[Statement, ...]:
    taken = draw(first)
    others = draw(st.lists(_statements(depth), min_size=1, max_size=5))
    return (*taken, *others, *draw(st.lists(_applied, max_size=2)))


_applied = st.builds(Apply, st.integers(0, 1), st.tuples(_numbers, _numbers))


@st.composite
def _blocks(draw: st.DrawFn, depth: int) -> Block:
    return Block(
        draw(st.sampled_from(("function", "branch", "loop"))),
        draw(_bodies(depth, st.lists(_takes(), max_size=1))),
        draw(st.integers(1, 2)),
        draw(st.booleans()),
    )
