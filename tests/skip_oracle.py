"""What a step of a recipe is to leave, computed in NumPy without TensorFlow.

Gradients are true ones in float64; beside each go the calls that it comes from. A call
overflows where its gradients, or the inner ones that they are taken of, are not finite,
or leave float16 once they are multiplied by the loss scale. An optimizer is to

- skip the step where it sees that a gradient comes from such a call: within a graph, by
  whatever way, and elsewhere as the very result of the call, or as what is not finite;
- take it where nothing around has overflowed;
- do either, wholly, in between: what a function returns together, what came from
  outside and is finite by now, and gradients of replicas that met meanwhile.

What replicas note where they cannot meet counts at the next step that an optimizer is
asked for; within one function only if that is traced after the first such call.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.skip_plans import (
    BETAS,
    EPSILON,
    MOMENTUM,
    OWN,
    RATE,
    Ask,
    Block,
    Change,
    Operation,
    Record,
    within,
)
from tests.skip_recipes import BY_HAND, Apply, Loss, Recipe, Write

INITIAL, INTERVAL, LARGEST = 2.0**12, 3, 2.0**24
_LARGEST_HALF = 65504.0
Calls = frozenset[int]
_NONE: Calls = frozenset()


@dataclasses.dataclass(frozen=True)
class Scale:
    """The state of the loss scale, and whether the last call counted was finite."""

    scale: float = INITIAL
    good: int = 0
    skipped: int = 0
    finite: bool = True

    def after(self, finite: bool) -> Scale:
        """Return what it becomes."""
        if not finite:
            return Scale(max(self.scale / 2, 1.0), 0, self.skipped + 1, False)
        if self.good + 1 < INTERVAL:
            return Scale(self.scale, self.good + 1, self.skipped)
        return Scale(min(self.scale * 2, LARGEST), 0, self.skipped)


@dataclasses.dataclass
class Model:
    """Weights, the variables of optimizers, and the loss scale.

    Attributes:
      weights: [size] each.
      slots: for each optimizer its iterations, and by weight momenta and velocities.
      scale: of the loss.
      noted: of replicas that have not met since, whether each call was finite.
    """

    weights: list[np.ndarray]
    slots: list[dict[str, Any]]
    scale: Scale = Scale()
    noted: list[bool] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Value:
    """A gradient, or what was made of some.

    Attributes:
      number: [replicas, size].
      calls: that it comes from.
      unseen: those of them that nobody can tell here.
      around: others that come out of the same place.
      direct: whether it is what a call has returned, outside of all functions.
    """

    number: np.ndarray
    calls: Calls = _NONE
    unseen: Calls = _NONE
    around: Calls = _NONE
    direct: bool = False

    def given(self) -> _Value:
        """Return it as a function sees what it is given."""
        return dataclasses.replace(self, unseen=self.calls, direct=False)


@dataclasses.dataclass
class _Tape:
    """Losses of weights as they are by now, and the inner calls of each.

    Attributes:
      begun: the scale then.
      first: the scale when the tape is first asked.
    """

    losses: tuple[Loss, ...]
    weights: list[np.ndarray]
    inner: list[Calls]
    inputs: np.ndarray
    begun: Scale
    first: Scale | None = None


@dataclasses.dataclass
class _Frame:
    """Where operations run, and what they see."""

    inputs: np.ndarray
    values: dict[int, _Value]
    tapes: dict[int, _Tape]
    in_graph: bool
    can_meet: bool


def outcomes(
    recipe: Recipe,
    plan: Sequence[Operation],
    model: Model,
    inputs: np.ndarray,
    takes: bool,
) -> Iterator[Step]:
    """Yield each outcome of a step that is right; the likeliest comes first."""
    waiting: list[list[bool]] = [[]]
    while waiting:
        choices = waiting.pop()
        step = Step(recipe, copy.deepcopy(model), takes, choices)
        step.run(plan, inputs)
        yield step
        for i in range(len(choices), len(step.chosen)):
            waiting.append([*step.chosen[:i], not step.chosen[i]])


class Step:
    """One step of a recipe, some choices made.

    Attributes:
      model: as it is left.
      chosen: what was done where both is right: whether it was taken.
      changed: weights, and optimizers by name, of which steps were taken.
      calls: how many there were; `bad` are those that overflowed.
    """

    def __init__(
        self, recipe: Recipe, model: Model, takes: bool, choices: Sequence[bool]
    ) -> None:
        """Begin with a model as it is."""
        self.model = model
        self.chosen: list[bool] = []
        self.changed: set[Any] = set()
        self.calls = 0
        self.bad: set[int] = set()
        self.forced = {"skip": 0, "take": 0}
        self._recipe = recipe
        self._takes = takes
        self._choices = choices
        # Whether what replicas have noted counts where an optimizer is asked.
        self._counts_noted = not recipe.traced

    def run(self, plan: Sequence[Operation], inputs: np.ndarray) -> None:
        """Take the step."""
        self._execute(plan, _Frame(inputs, {}, {}, self._recipe.traced, True))

    def _execute(self, body: Sequence[Operation], frame: _Frame) -> None:
        for operation in body:
            match operation:
                case Record():
                    self._record(operation, frame)
                case Ask():
                    self._ask(operation, frame)
                case Change():
                    frame.values[operation.makes] = self._changed(operation, frame)
                case Apply(number, values):
                    self._apply(number, [frame.values[v] for v in values], frame)
                case Write(value):
                    self._write(frame.values[value], frame)
                case Block():
                    self._block(operation, frame)
            self._counts_noted |= _has_noting_call(operation)

    def _record(self, record: Record, frame: _Frame) -> None:
        begun, inner = self.model.scale, []
        for loss in record.losses:
            if loss.kind != "penalty":
                inner.append(_NONE)
                continue
            x, w = frame.inputs[:, loss.input], self.model.weights[loss.weight]
            finite = bool(np.isfinite(2 * w * x).all())
            traced = frame.in_graph or loss.place == "function"
            meets = frame.can_meet and (loss.place == "here" or not traced)
            call = self._call(finite)
            self._count(finite, meets or not self._recipe.replicas)
            inner.append(frozenset([call]))
        weights = list(self.model.weights)
        tape = _Tape(record.losses, weights, inner, frame.inputs, begun)
        frame.tapes[record.tape] = tape

    def _ask(self, ask: Ask, frame: _Frame) -> None:
        tape = frame.tapes[ask.tape]
        since = tape.first
        if since is None:
            tape.first = self.model.scale
        slopes = {weight: np.zeros_like(tape.inputs[:, 0]) for weight in ask.weights}
        inner = _NONE
        for i in ask.losses:
            loss = tape.losses[i]
            slope = self._slope(loss, tape)
            if tape.inner[i] & self.bad:
                slope = slope * np.nan
            slopes[loss.weight] = slopes[loss.weight] + slope
            inner |= tape.inner[i]
        finite = all(np.isfinite(slope).all() for slope in slopes.values())
        call = self._call(finite)
        if self._counts(finite, since, tape, bool(inner & self.bad), frame):
            self._count(finite, frame.can_meet)
        calls = inner | {call}
        for number, weight in zip(ask.makes, ask.weights, strict=True):
            frame.values[number] = _Value(
                slopes[weight], calls, direct=not frame.in_graph
            )

    def _slope(self, loss: Loss, tape: _Tape) -> np.ndarray:
        """Return the true gradient, infinite where the scaled one is."""
        x, w = tape.inputs[:, loss.input], tape.weights[loss.weight]
        match loss.kind:
            case "half":
                scale = tape.first.scale
                too_large = np.maximum(np.abs(x), 1.0) * scale > _LARGEST_HALF
                return np.where(too_large, np.copysign(np.inf, x), x)
            case "square":
                return x * x * w
            case "penalty":
                return (2 * w * x + 1.0) * 2 * x
        return x

    def _counts(
        self,
        finite: bool,
        since: Scale | None,
        tape: _Tape,
        inner_is_bad: bool,
        frame: _Frame,
    ) -> bool:
        """Return whether a call counts; `since` is when its tape was first asked."""
        if not frame.can_meet:
            return True
        now = self.model.scale
        if since is None and not frame.in_graph and not finite:
            return now.skipped == tape.begun.skipped
        if frame.in_graph and inner_is_bad:
            return False
        if since is None:
            return True
        if finite:
            return dataclasses.replace(now, finite=since.finite) == since
        return now.skipped == since.skipped

    def _call(self, finite: bool) -> int:
        self.calls += 1
        if not finite:
            self.bad.add(self.calls)
        return self.calls

    def _count(self, finite: bool, meets: bool) -> None:
        if meets:
            self.model.scale = self.model.scale.after(finite)
        else:
            self.model.noted.append(finite)

    def _changed(self, change: Change, frame: _Frame) -> _Value:
        value, other = frame.values[change.value], frame.values[change.other]
        sources = [value]
        match change.how:
            case "doubled":
                number = 2 * value.number
            case "decayed":
                number = value.number + 0.125 * self.model.weights[change.weight]
            case "summed":
                number, sources = value.number + other.number, [value, other]
            case "normed":
                both = np.stack([value.number, other.number])
                norm = np.sqrt((both**2).sum((0, 2)))[:, None]
                number, sources = (
                    value.number * (4 / np.maximum(norm, 4)),
                    [
                        value,
                        other,
                    ],
                )
                number = np.where(np.isfinite(norm), number, np.nan)
            case _:
                clipped = np.clip(value.number, -2, 2)
                number = np.where(np.isfinite(value.number), clipped, 0.5)
        calls = _all(source.calls for source in sources)
        unseen = _all(source.unseen for source in sources)
        around = _all(source.around for source in sources)
        return _Value(number, calls, unseen if frame.in_graph else calls, around)

    def _block(self, block: Block, frame: _Frame) -> None:
        """Run a block; add up what it makes."""
        before = self.calls
        uses = [frame.values[number] for number in block.uses]
        for tape in block.first:
            if frame.tapes[tape].first is None:
                frame.tapes[tape].first = self.model.scale
        zeros = np.zeros_like(frame.inputs[:, 0])
        sums = [_Value(zeros) for _ in block.makes]
        if block.kind != "branch" or self._takes:
            for i in range(block.rounds):
                made = self._round(block, frame, i)
                sums = [_sum(*pair) for pair in zip(sums, made, strict=True)]
                if not block.is_traced and block.kind == "branch":
                    # Outside of functions it is Python's.
                    sums = made
        inside = frozenset(range(before + 1, self.calls + 1))
        around = inside | _all(use.calls | use.around for use in uses)
        asked = {each.tape for each in within(block.body) if isinstance(each, Ask)}
        for tape in asked & frame.tapes.keys():
            around |= _all(frame.tapes[tape].inner)
        hidden = _all(use.unseen for use in uses)
        for number, value in zip(block.makes, sums, strict=True):
            if block.is_traced:
                unseen = value.unseen & hidden if frame.in_graph else value.calls
                value = dataclasses.replace(
                    value, unseen=unseen, around=value.around | around, direct=False
                )
            elif block.kind == "loop":
                value = dataclasses.replace(value, unseen=value.calls, direct=False)
            frame.values[number] = value

    def _round(self, block: Block, frame: _Frame, number: int) -> list[_Value]:
        inner = _Frame(
            inputs=np.roll(frame.inputs, -number, axis=1),
            values=dict(frame.values),
            tapes=dict(frame.tapes),
            in_graph=block.is_traced,
            can_meet=not (block.is_traced and self._recipe.replicas),
        )
        if block.given:
            inner.values = {n: frame.values[n].given() for n in block.uses}
        self._execute(block.body, inner)
        return [inner.values[number] for number in block.makes]

    def _apply(self, number: int, values: Sequence[_Value], frame: _Frame) -> None:
        met_overflow = self._meet()
        is_direct = all(value.direct for value in values)
        last_overflowed = not is_direct and not self.model.scale.finite
        excused = not frame.in_graph and (met_overflow or last_overflowed)
        if not self._is_taken(values, excused):
            return
        self.changed |= {f"optimizer {number}", *OWN[number]}
        kind, slots = self._recipe.optimizers[number], self.model.slots[number]
        slots["iteration"] += 1
        for place, (weight, value) in enumerate(zip(OWN[number], values, strict=True)):
            slope = value.number.sum(0)
            step = _step(kind, slope, slots, place)
            self.model.weights[weight] = self.model.weights[weight] + step

    def _meet(self) -> bool:
        """Let replicas meet; return whether any has noted an overflow."""
        if not self.model.noted or not self._counts_noted:
            return False
        finite = all(self.model.noted)
        self._count(finite, True)
        self.model.noted.clear()
        return not finite

    def _write(self, value: _Value, frame: _Frame) -> None:
        if not frame.in_graph:
            value = value.given()
        if self._is_taken([value], False):
            self.changed.add(BY_HAND)
            step = -RATE * value.number.mean(0)
            self.model.weights[BY_HAND] = self.model.weights[BY_HAND] + step

    def _is_taken(self, values: Sequence[_Value], excused: bool) -> bool:
        seen = _all(value.calls - value.unseen for value in values)
        anywhere = _all(value.calls | value.around for value in values)
        shows = not all(np.isfinite(value.number).all() for value in values)
        if seen & self.bad or shows:
            self.forced["skip"] += 1
            return False
        if not excused and not anywhere & self.bad:
            self.forced["take"] += 1
            return True
        place = len(self.chosen)
        self.chosen.append(self._choices[place] if place < len(self._choices) else True)
        return self.chosen[-1]


def _step(kind: str, slope: np.ndarray, slots: Mapping[str, Any], place: int) -> Any:
    """Return what an optimizer adds to a weight; change its slots."""
    if kind == "descent":
        return -RATE * slope
    momenta = slots["momentum"]
    if kind == "momentum":
        momenta[place] = MOMENTUM * momenta[place] - RATE * slope
        return momenta[place]
    velocities, (first, second) = slots["velocity"], BETAS
    momenta[place] = momenta[place] + (slope - momenta[place]) * (1 - first)
    velocities[place] = velocities[place] + (slope**2 - velocities[place]) * (
        1 - second
    )
    number = slots["iteration"]
    rate = RATE * np.sqrt(1 - second**number) / (1 - first**number)
    return -rate * momenta[place] / (np.sqrt(velocities[place]) + EPSILON)


def _sum(one: _Value, other: _Value) -> _Value:
    return _Value(
        one.number + other.number,
        one.calls | other.calls,
        one.unseen | other.unseen,
        one.around | other.around,
    )


def _has_noting_call(operation: Operation) -> bool:
    """Return whether replicas note calls there, if they cannot meet in blocks."""
    in_block = isinstance(operation, Block)
    return any(
        (in_block and isinstance(each, Ask))
        or (
            isinstance(each, Record)
            and any(
                loss.kind == "penalty" and (in_block or loss.place != "here")
                for loss in each.losses
            )
        )
        for each in within([operation])
    )


def _all(sets: Any) -> Calls:
    return frozenset().union(*sets)
