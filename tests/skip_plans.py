"""A recipe with every name resolved: what is in sight where, and what is not done.

Program and oracle go through the same plan.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from tests import skip_recipes as recipes
from tests.skip_recipes import BY_HAND, Apply, Loss, Recipe, Write

# Weights of each optimizer.
OWN = ((0, 1), (2,))
# Of each optimizer that has such.
RATE, MOMENTUM, BETAS, EPSILON = 2.0**-10, 0.875, (0.875, 0.984375), 1e-7


@dataclasses.dataclass(frozen=True)
class Record:
    """Record losses on a tape."""

    tape: int
    losses: tuple[Loss, ...]
    persistent: bool


@dataclasses.dataclass(frozen=True)
class Ask:
    """Ask a tape for the gradients of some of its losses.

    Attributes:
      tape: its number.
      losses: places among those of the tape.
      weights: that gradients are taken of.
      makes: numbers of the gradients, one for each weight.
    """

    tape: int
    losses: tuple[int, ...]
    weights: tuple[int, ...]
    makes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Change:
    """Compute something from gradients; `weight` is what "decayed" adds."""

    how: str
    value: int
    other: int
    weight: int
    makes: int


@dataclasses.dataclass(frozen=True)
class Block:
    """Operations in a function, a branch or a loop.

    Attributes:
      kind: as in the recipe.
      body: operations.
      rounds: how often they run, each with the next inputs.
      given: whether what it uses comes as arguments.
      is_traced: whether it is a graph of its own.
      makes: numbers of its results.
      uses: numbers of gradients from outside.
      first: tapes around it that are asked here for the first time.
    """

    kind: str
    body: tuple[Operation, ...]
    rounds: int
    given: bool
    is_traced: bool
    makes: tuple[int, ...]
    uses: tuple[int, ...]
    first: tuple[int, ...]


Operation = Record | Ask | Change | Apply | Write | Block


@dataclasses.dataclass(frozen=True)
class _Sight:
    """What can be named somewhere.

    Attributes:
      values: numbers of gradients.
      tapes: those that can be asked again.
      in_graph: whether this is in a function.
      can_train: whether an optimizer can be asked here.
    """

    values: tuple[int, ...] = ()
    tapes: tuple[Record, ...] = ()
    in_graph: bool = False
    can_train: bool = True


def plan_of(recipe: Recipe) -> tuple[Operation, ...]:
    """Return the operations of a step."""
    return _Planner(recipe).body(recipe.body, _Sight(in_graph=recipe.traced))


def within(body: Sequence[Operation]) -> Iterator[Operation]:
    """Yield all operations, those in blocks too."""
    for operation in body:
        yield operation
        if isinstance(operation, Block):
            yield from within(operation.body)


class _Planner:
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._values = itertools.count()
        self._tapes = itertools.count()

    def body(
        self, statements: Sequence[recipes.Statement], sight: _Sight
    ) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        for statement in statements:
            for operation in self._planned(statement, sight):
                operations.append(operation)
                sight = _seeing(sight, operation)
        return tuple(operations)

    def _planned(
        self, statement: recipes.Statement, sight: _Sight
    ) -> Iterator[Operation]:
        match statement:
            case recipes.Take(losses, asked, persistent):
                record = Record(next(self._tapes), losses, persistent)
                yield record
                for some in asked if persistent else asked[:1]:
                    yield self._asked(record, some)
            case recipes.Ask(tape, losses) if sight.tapes:
                yield self._asked(_one(sight.tapes, tape), losses)
            case recipes.Change(how, value, other) if sight.values:
                names = _one(sight.values, value), _one(sight.values, other)
                yield Change(how, *names, other % BY_HAND, next(self._values))
            case Apply(number, values) if sight.values and sight.can_train:
                optimizer = number % len(self._recipe.optimizers)
                given = itertools.cycle(values)
                names = (_one(sight.values, next(given)) for _ in OWN[optimizer])
                yield Apply(optimizer, tuple(names))
            case Write(value) if sight.values and sight.can_train:
                yield Write(_one(sight.values, value))
            case recipes.Block():
                yield from self._block(statement, sight)

    def _asked(self, record: Record, losses: Sequence[int]) -> Ask:
        places = tuple(dict.fromkeys(i % len(record.losses) for i in losses))
        weights = tuple(dict.fromkeys(record.losses[i].weight for i in places))
        makes = tuple(next(self._values) for _ in weights)
        return Ask(record.tape, places, weights, makes)

    def _block(self, block: recipes.Block, sight: _Sight) -> Iterator[Block]:
        in_graph = sight.in_graph or block.kind == "function"
        enters = in_graph and not sight.in_graph
        inside = _Sight(
            values=sight.values,
            # Outside of functions tapes are no arguments.
            tapes=() if enters else sight.tapes,
            in_graph=in_graph,
            # Replicas cannot meet in there.
            can_train=sight.can_train and not (self._recipe.replicas and in_graph),
        )
        body = self.body(block.body, inside)
        makes = tuple(_made_by(body))
        if not body:
            return
        inner = tuple(within(body))
        recorded = {o.tape for o in inner if isinstance(o, Record)}
        asked = [o.tape for o in inner if isinstance(o, Ask)]
        outer = tuple(tape for tape in asked if tape not in recorded)
        yield Block(
            kind=block.kind,
            body=body,
            rounds=block.rounds if block.kind != "branch" else 1,
            given=enters or (block.given and block.kind == "function"),
            is_traced=in_graph,
            makes=makes,
            uses=tuple(dict.fromkeys(n for n in _used_by(inner) if n in sight.values)),
            first=outer if in_graph else (),
        )


def _one(things: Sequence, number: int):
    return things[number % len(things)]


def _seeing(sight: _Sight, operation: Operation) -> _Sight:
    if isinstance(operation, Record):
        more = (operation,) if operation.persistent else ()
        return dataclasses.replace(sight, tapes=(*sight.tapes, *more))
    return dataclasses.replace(sight, values=(*sight.values, *_made_by([operation])))


def _made_by(body: Sequence[Operation]) -> list[int]:
    made: list[int] = []
    for operation in body:
        match operation:
            case Change(makes=makes):
                made.append(makes)
            case Ask(makes=several) | Block(makes=several):
                made.extend(several)
    return made


def _used_by(body: Sequence[Operation]) -> Iterator[int]:
    for operation in body:
        match operation:
            case Change(value=value, other=other):
                yield from (value, other)
            case Apply(values=values):
                yield from values
            case Write(value=value):
                yield value
