"""Training programs built of recipes, as their authors would write them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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
    plan_of,
)
from tests.skip_recipes import BY_HAND, WEIGHTS, Apply, Loss, Recipe, Write

SIZE = 4
OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "descent": lambda: keras.optimizers.SGD(RATE),
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=MOMENTUM),
    "adam": lambda: keras.optimizers.Adam(RATE, *BETAS, epsilon=EPSILON),
}
_function = functools.partial(tf.function, autograph=False)


@dataclasses.dataclass(frozen=True)
class Given:
    """What a step is given: inputs, [rows, size], and whether branches are taken."""

    inputs: Any
    takes: Any


@dataclasses.dataclass
class _Frame:
    """Where operations run, and what they see."""

    given: Given
    values: dict[int, Any]
    tapes: dict[int, tuple[tf.GradientTape, Sequence[Any]]]

    def inner(self, given: Given | None = None) -> _Frame:
        return _Frame(given or self.given, dict(self.values), dict(self.tapes))


class Program:
    """A model with its optimizers, and a step that trains it."""

    def __init__(self, recipe: Recipe) -> None:
        """Make the variables; nothing is traced yet."""
        self.recipe = recipe
        self._plan = plan_of(recipe)
        self._strategy = _strategy(recipe.replicas) if recipe.replicas else None
        scope = self._strategy or tf.distribute.get_strategy()
        with scope.scope():
            self.weights = [_weight(i) for i in range(WEIGHTS)]
            self.optimizers = [OPTIMIZERS[name]() for name in recipe.optimizers]
        for own, optimizer in zip(OWN, self.optimizers, strict=False):
            with scope.scope():
                optimizer.build([self.weights[i] for i in own])
        # What is called outside of all functions, traced once.
        self._functions: dict[Any, Any] = {}
        traced = _function(self._run, jit_compile=recipe.compiled or None)
        self._step = traced if recipe.traced else self._run

    def step(self, inputs: np.ndarray, takes: bool) -> None:
        """Train for a step.

        Args:
          inputs: [replicas, rows, size].
          takes: whether branches are taken.
        """
        rows = [tf.constant(row, tf.float32) for row in inputs]
        if self._strategy is None:
            self._step(rows[0], tf.constant(takes))
            return
        distribute = self._strategy.experimental_distribute_values_from_function
        each = distribute(lambda context: rows[context.replica_id_in_sync_group])
        self._step(each, tf.constant(takes))

    def state(self) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
        """Return weights, and the variables of each optimizer by name."""
        weights = [self._alike(weight) for weight in self.weights]
        return weights, [
            {v.path.partition("/")[2]: self._alike(v.value) for v in o.variables}
            for o in self.optimizers
        ]

    def _alike(self, variable: Any) -> np.ndarray:
        if self._strategy is None:
            return variable.numpy()
        copies = self._strategy.experimental_local_results(variable)
        first, *others = [copy.numpy() for copy in copies]
        assert all(first.tobytes() == other.tobytes() for other in others), (
            f"replicas differ in {variable.name}: {[first, *others]}"
        )
        return first

    def _run(self, inputs: Any, takes: Any) -> None:
        if self._strategy is None:
            self._run_here(inputs, takes)
        else:
            self._strategy.run(self._run_here, args=(inputs, takes))

    def _run_here(self, inputs: Any, takes: Any) -> None:
        self._execute(self._plan, _Frame(Given(inputs, takes), {}, {}))

    def _execute(self, body: Sequence[Operation], frame: _Frame) -> None:
        for operation in body:
            match operation:
                case Record():
                    self._record(operation, frame)
                case Ask():
                    _ask(operation, frame, self.weights)
                case Change():
                    frame.values[operation.makes] = self._changed(operation, frame)
                case Apply(number, values):
                    own = [self.weights[i] for i in OWN[number]]
                    gradients = [frame.values[value] for value in values]
                    self.optimizers[number].apply(gradients, own)
                case Write(value):
                    self.weights[BY_HAND].assign_sub(RATE * frame.values[value])
                case Block():
                    made = self._block(operation, frame)
                    frame.values.update(zip(operation.makes, made, strict=True))

    def _record(self, record: Record, frame: _Frame) -> None:
        with tf.GradientTape(persistent=record.persistent) as tape:
            losses = [self._loss(loss, frame.given.inputs) for loss in record.losses]
        frame.tapes[record.tape] = tape, losses

    def _loss(self, loss: Loss, inputs: Any) -> Any:
        x = inputs[loss.input]

        def compute(x: Any) -> Any:
            return LOSSES[loss.kind](self.weights[loss.weight], x)

        match loss.place:
            case "function":
                return self._kept(loss, lambda: _function(compute))(x)
            case "branch":
                return tf.cond(tf.size(x) > 0, lambda: compute(x), lambda: 0.0)
            case "loop":
                return tf.while_loop(
                    lambda i, _: i < 1, lambda i, _: (i + 1, compute(x)), (0, 0.0)
                )[1]
        return compute(x)

    def _changed(self, change: Change, frame: _Frame) -> Any:
        value, other = frame.values[change.value], frame.values[change.other]
        match change.how:
            case "doubled":
                return 2.0 * value
            case "decayed":
                return value + 0.125 * self.weights[change.weight]
            case "summed":
                return value + other
            case "normed":
                return tf.clip_by_global_norm([value, other], 4.0)[0][0]
            case "repaired":
                clipped = tf.clip_by_value(value, -2.0, 2.0)
                return tf.where(tf.math.is_finite(value), clipped, 0.5)
        raise ValueError(change.how)

    def _block(self, block: Block, frame: _Frame) -> list[Any]:
        """Return what a block makes, [size] each."""
        given = frame.given

        def run(inner: _Frame) -> list[Any]:
            self._execute(block.body, inner)
            return [inner.values[number] for number in block.makes]

        if block.kind == "branch":
            nothing = [tf.zeros(SIZE) for _ in block.makes]
            return tf.cond(
                given.takes,
                lambda: [*run(frame.inner()), tf.constant(0)],
                lambda: [*nothing, tf.constant(0)],
            )[:-1]
        if block.kind == "loop":

            def body(i: Any, *sums: Any) -> tuple[Any, ...]:
                shifted = tf.roll(given.inputs, -i, axis=0)
                made = run(frame.inner(Given(shifted, given.takes)))
                return i + 1, *map(tf.add, sums, made)

            nothing = [tf.zeros(SIZE) for _ in block.makes]
            return tf.while_loop(
                lambda i, *_: i < block.rounds, body, (tf.constant(0), *nothing)
            )[1:]
        function, uses = self._function(block, frame, run), []
        if block.given:
            uses = [frame.values[number] for number in block.uses]
        rounds = [
            function(tf.roll(given.inputs, -i, axis=0), given.takes, *uses)
            for i in range(block.rounds)
        ]
        return [functools.reduce(tf.add, parts) for parts in zip(*rounds, strict=True)]

    def _function(
        self, block: Block, frame: _Frame, run: Callable[[_Frame], list[Any]]
    ) -> Any:
        def function(inputs: Any, takes: Any, *uses: Any) -> list[Any]:
            inner = frame.inner(Given(inputs, takes))
            if block.given:
                inner.values = dict(zip(block.uses, uses, strict=True))
            return run(inner)

        return self._kept(block, lambda: _function(function))

    def _kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return a function, the same each time outside of all functions."""
        if not tf.executing_eagerly():
            return make()
        if key not in self._functions:
            self._functions[key] = make()
        return self._functions[key]


@functools.cache
def _strategy(replicas: int) -> tf.distribute.Strategy:
    """Return a strategy, one in a process: those of several take each other's turn."""
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def _weight(number: int) -> tf.Variable:
    is_written = number == BY_HAND
    mean = tf.VariableAggregation.MEAN
    aggregation = mean if is_written else tf.VariableAggregation.NONE
    initial = tf.constant([1.0, 1.25, 1.5, 2.0])
    return tf.Variable(initial, name=f"w{number}", aggregation=aggregation)


def _ask(ask: Ask, frame: _Frame, weights: Sequence[tf.Variable]) -> None:
    tape, losses = frame.tapes[ask.tape]
    targets = [losses[i] for i in ask.losses]
    sources = [weights[i] for i in ask.weights]
    slopes = tape.gradient(targets, sources)
    frame.values.update(zip(ask.makes, slopes, strict=True))


def _linear(w: Any, x: Any) -> Any:
    return tf.reduce_sum(w * x)


def _half(w: Any, x: Any) -> Any:
    product = tf.cast(w, tf.float16) * tf.cast(x, tf.float16)
    return tf.reduce_sum(tf.cast(product, tf.float32))


def _square(w: Any, x: Any) -> Any:
    return tf.reduce_sum((w * x) ** 2) / 2.0


def _penalty(w: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(w * x * x)
    return tf.reduce_sum((tape.gradient(y, x) + 1.0) ** 2) / 2.0


LOSSES: Mapping[str, Callable[[Any, Any], Any]] = {
    "linear": _linear,
    "half": _half,
    "square": _square,
    "penalty": _penalty,
}
