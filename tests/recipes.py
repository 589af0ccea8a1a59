"""Programs as descriptions that print, rebuild, and shrink.

A recipe says what a program is made of; hypothesis draws and shrinks recipes, and
`eval(repr(recipe))` is the recipe again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.placing import KIND, placed
from tests.programs import Program, control_flow, program_from_graph
from tests.recipe_builder import Builder, Sample
from tests.recipe_parts import INPUTS, LAYERS, LOOPS
from tests.recipe_training import LOSSES, TRAINING

# Of the last bias; most have none.
_OFFSETS = (0.0, 0.0, 0.0, 0.0, 500.0, 1000.0)
# Of parts whose count and amount mean something.
_COUNTS = {
    "residual": (2, 24),
    "euler": (10, 100),
    "power_iteration": (3, 20),
    "gated": (5, 30),
    "memory": (5, 30),
    "sum_of_activations": (50, 300),
    "sum_of_gradients": (50, 300),
    "discounted": (50, 200),
    "inner_steps": (1, 8),
    "training_loop": (5, 50),
}
# The larger ones take their time.
_WIDTHS = (16, 32, 64, 16, 32, 64, 16, 32, 128, 256)
_SMALL_STEPS = ("residual", "euler")


Drawn = TypeVar("Drawn")


class Brief:
    """Shows the fields that differ from their defaults."""

    def __repr__(self) -> str:
        given = ", ".join(
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        )
        return f"{type(self).__name__}({given})"


@dataclasses.dataclass(frozen=True, repr=False)
class Part(Brief):
    """A layer or loop: its kind, how often it repeats, and how much it adds."""

    kind: str
    count: int = 1
    amount: float = 0.0


@dataclasses.dataclass(frozen=True, repr=False)
class Recipe(Brief):
    """What a program is made of.

    Attributes:
      inputs: what it begins with.
      layers: applied one after the other to [batch, width].
      loss: what follows them; "" for none.
      target: what a squared error's targets lie around.
      training: what is done with the gradients of the loss; "" for nothing.
      rate: of that training.
      batch: rows.
      width: columns, and the inner size of products; a multiple of 16.
      positive: whether what is fed has one sign.
      v2: whether loops are functional.
      ref: whether variables are v1 references.
      prices: whose turn it is among plans, and the seed of arbitrary prices.
    """

    inputs: str = "plain"
    layers: tuple[Part, ...] = (Part("linear"),)
    loss: str = ""
    target: float = 0.0
    training: str = ""
    rate: float = 0.1
    batch: int = 16
    width: int = 16
    positive: bool = False
    v2: bool = False
    ref: bool = False
    prices: int = 0


@dataclasses.dataclass(frozen=True)
class Dish:
    """A recipe as built.

    Attributes:
      program: with the values of sample 0.
      variables: names of those that are read at the end, in their order.
      sample: draws other values.
    """

    program: Program
    variables: tuple[str, ...]
    sample: Callable[[int], Sample]


def build(recipe: Recipe, kind: str = KIND) -> Dish:
    """Build the program of a recipe, placed on a kind of devices: those it runs on."""
    with control_flow(v2=recipe.v2), tf.Graph().as_default() as graph:
        b = Builder(recipe.batch, recipe.width, recipe.positive, recipe.ref)
        x = INPUTS[recipe.inputs](b)
        for part in recipe.layers:
            with tf.name_scope(part.kind):
                x = {**LAYERS, **LOOPS}[part.kind](b, x, part.count, part.amount)
        b.fetch(x, "output")
        if recipe.loss:
            loss = LOSSES[recipe.loss](b, x, recipe.target)
            b.fetch(loss, "loss")
        if recipe.training and b.weights:
            TRAINING[recipe.training](b, loss, recipe.rate)
        sample = b.sample(0)
        variables = tuple(v.op.name for v in tf.compat.v1.global_variables())
        program = program_from_graph(
            graph,
            {tensor: sample.feeds[tensor.name] for tensor in b.feeds},
            b.fetches,
            targets=b.targets,
            steps=2 if b.targets else 1,
        )
    on_devices = placed(program.graph_def, kind)
    program = dataclasses.replace(program, graph_def=on_devices)
    return Dish(program, variables, b.sample)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Draw a recipe; simpler ones come first."""
    layers = draw(st.lists(parts(), min_size=1, max_size=4))
    loss = draw(st.sampled_from(("", *LOSSES)))
    training = draw(st.sampled_from(("", *TRAINING))) if loss else ""
    offset = draw(st.sampled_from(_OFFSETS))
    if offset:
        layers.append(Part("linear", amount=offset))
    # Without a bias that large, steps towards such targets leave every type's range.
    targets = (offset,) if training else _OFFSETS
    v2 = draw(st.booleans())
    return Recipe(
        inputs=draw(st.one_of(st.just("plain"), st.sampled_from(tuple(INPUTS)))),
        layers=tuple(layers),
        loss=loss,
        target=draw(st.sampled_from(targets)) if loss == "squared_error" else 0.0,
        training=training,
        rate=draw(st.sampled_from((0.1, 0.01))),
        batch=draw(st.sampled_from((16, 4, 64))),
        width=draw(st.sampled_from(_WIDTHS)),
        positive=draw(st.booleans()),
        v2=v2,
        # Functions cannot hold reference variables.
        ref=draw(st.booleans()) and not v2,
        prices=draw(st.integers(0, 99)),
    )


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """Draw a layer or a loop with a count and an amount that suit it."""
    kinds = (tuple(LAYERS), tuple(LAYERS), tuple(LOOPS))
    kind = draw(st.one_of(*map(st.sampled_from, kinds)))
    count = draw(st.integers(*_COUNTS[kind])) if kind in _COUNTS else 1
    if kind in _SMALL_STEPS:
        return Part(kind, count, draw(st.sampled_from((0.01, 0.02, 0.05))))
    if kind == "scaled":
        return Part(kind, amount=draw(st.sampled_from((0.3, 0.9, 1.7, 0.5))))
    if kind in ("inner_steps", "training_loop"):
        return Part(kind, count, draw(st.sampled_from((0.1, 0.01))))
    return Part(kind, count)


def recipe_of(number: int) -> Recipe:
    """Return the recipe of a seed."""
    return drawn_from(recipes(), number)


class _BrokenError(AssertionError):
    """Tells hypothesis that a recipe breaks the rule."""


def drawn_from(strategy: st.SearchStrategy[Drawn], number: int) -> Drawn:
    """Return what a strategy draws from a seed."""
    drawn: list[Drawn] = []
    _draw(strategy, number, drawn.append)
    return drawn[-1]


def smallest_of(
    strategy: st.SearchStrategy[Drawn], number: int, breaks: Callable[[Drawn], bool]
) -> Drawn:
    """Return what it is shrunk to while it `breaks`."""
    broken = [drawn_from(strategy, number)]

    def test(recipe: Drawn) -> None:
        if breaks(recipe):
            broken.append(recipe)
            raise _BrokenError

    try:
        _draw(strategy, number, test)
    except _BrokenError:
        pass
    return broken[-1]


def _draw(
    strategy: st.SearchStrategy[Drawn], number: int, test: Callable[[Drawn], None]
) -> None:
    """Run a test on the simplest recipe, and on the one of the seed."""

    @given(strategy)
    def run(recipe: Drawn) -> None:
        test(recipe)

    phases = [Phase.generate, Phase.shrink]
    options = settings(
        max_examples=2,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(options(run))()
