"""Flags that say whether gradients were finite, and where they are kept.

- In a graph, on the results of each call for gradients. Whoever uses gradients,
  clipped, summed or averaged as they may be, finds the flags by walking back.
- Outside of functions, on eager tensors. Tensors that carry none show an overflow by
  not being finite, or else, clipped as they may be, the state of the loss scale shows
  what has happened since the optimizer was asked the last time.
- In counters beside those of a state: of overflows within a branch, a loop or a
  function that are not counted, because another one of the same tape has been; and of
  each replica's own calls within functions, branches and loops that each replica traces
  for itself. There nothing can be agreed on, and variables that are the same on all
  replicas cannot be written: replicas meet, and adjust the loss scale, when an
  optimizer asks whether to take the step. Eager optimizers then skip where there was
  any overflow since replicas have met. A function whose optimizers are all traced
  before the first such call adjusts no loss scale for it: nothing applies it there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.graph.op_table import BRANCH_OPS, MERGE_OPS
from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import captured, kept_with, outwards
from tf_amp.message_codes import Code
from tf_amp.training.scale_at_run_time import is_eager_outside
from tf_amp.training.scale_state import ScaleState, made_outside
from tf_amp.training.scale_update import (
    ScaleUpdate,
    agreed,
    are_finite,
    is_scalable,
    largest_of,
    summed_over_replicas,
)

# Of a graph: flags by tensor. Of an eager tensor: whether its call was finite.
_FLAGS_OF_GRAPH = "_tf_amp_finite_flags"
_FINITE = "_tf_amp_finite"
_BRANCHES = BRANCH_OPS | MERGE_OPS
_FUNCTION_ATTRIBUTES = ("f", "then_branch", "body", "branches", "body_graph")


@dataclasses.dataclass(frozen=True, eq=False)
class FiniteFlag:
    """What one call for gradients has decided.

    Attributes:
      finite: whether its results are, bool scalar; those it was made from included.
      own: the same, regardless of what the results were made from.
      scale_update: adjusts the loss scale, from a tensor that says whether gradients
        are finite.
      updated: in a `tf.Graph`, the operation that waits for the loss scale to be
        adjusted; None elsewhere, and where the results are made from others'.
      adjusting: what `updated` waits for.
    """

    finite: Any
    own: Any
    scale_update: ScaleUpdate
    updated: Any = None
    adjusting: tuple[Any, ...] = ()


class Ancestry(NamedTuple):
    """What is behind some tensors.

    Attributes:
      flags: each one once, in the order found.
      arguments: of functions, and what is fed, of which nothing more is known.
      calls: operations that call functions.
      is_whole: whether nothing is left out, as the flags are of old
        loops, and what is behind branches where the walk ends there.
    """

    flags: tuple[FiniteFlag, ...] = ()
    arguments: tuple[Any, ...] = ()
    calls: tuple[Any, ...] = ()
    is_whole: bool = True


def put_flag(results: Sequence[Any], flag: FiniteFlag) -> None:
    """Remember what the results of a call depend on."""
    for tensor in results:
        if not _is_symbolic(tensor):
            setattr(tensor, _FINITE, flag.finite)
        else:
            kept_with(tensor.graph, _FLAGS_OF_GRAPH)[tensor.ref()] = flag


def flag_on(tensor: Any) -> FiniteFlag | None:
    """Return the flag that a tensor of a graph carries, if any."""
    flags: dict[Any, FiniteFlag] = getattr(tensor.graph, _FLAGS_OF_GRAPH, {})
    return flags.get(tensor.ref())


def share_flag(results: Sequence[Any], beside: Any) -> None:
    """Let what comes beside the results of a call be used only where they are."""
    known = map(flag_on, filter(_is_symbolic, [beside, *results]))
    flag = next((flag for flag in known if flag is not None), None)
    if flag is not None and _is_symbolic(beside):
        put_flag([beside], flag)


def ancestry_of(tensors: Iterable[Any], *, numbers_only: bool = False) -> Ancestry:
    """Walk back from tensors to the calls for gradients that they come from.

    Args:
      tensors: where to begin.
      numbers_only: whether to follow no more than what numbers are computed from, up to
        the branches of a graph. What a program decides on, such as whether there was an
        overflow, is no part of it: the numbers that are chosen then need not come from
        gradients.
    """

    def is_end(tensor: Any) -> bool:
        is_choice = numbers_only and tensor.op.type in _BRANCHES
        return is_choice or flag_on(tensor) is not None

    flags: dict[FiniteFlag, None] = {}
    arguments = []
    calls = {}
    is_whole = True
    for tensor in walk(tensors, is_end, numbers_only):
        flag = flag_on(tensor)
        if flag is not None:
            flags[flag] = None
        elif tensor.op.type == "Placeholder" and is_scalable(tensor):
            arguments.append(tensor)
        elif calls_function(tensor.op):
            calls[id(tensor.op)] = tensor.op
        is_whole = is_whole and tensor.op.type not in _BRANCHES
    seen = [one for one in map(_seen_from_here, flags) if one is not None]
    is_whole = is_whole and len(seen) == len(flags)
    return Ancestry(tuple(seen), tuple(arguments), tuple(calls.values()), is_whole)


def any_flags_around(graph: Any) -> bool:
    """Return whether a graph, or one around it, holds flags."""
    return any(hasattr(each, _FLAGS_OF_GRAPH) for each in outwards(graph))


def descends_from(tensors: Iterable[Any], is_wanted: Callable[[Any], Any]) -> bool:
    """Return whether a wanted tensor is among some, or behind them by any way."""
    return any(is_wanted(tensor) for tensor in walk(tensors, lambda tensor: False))


def calls_function(operation: Any) -> bool:
    """Return whether an operation runs functions, loops or branches."""
    definition = operation.op_def
    return any(a.name in _FUNCTION_ATTRIBUTES for a in definition.attr)


def walk(
    tensors: Iterable[Any], is_end: Callable[[Any], bool], numbers_only: bool = False
) -> Iterator[Any]:
    """Yield symbolic tensors and what they are made of; not beyond an end.

    Args:
      tensors: where to begin.
      is_end: returns whether to go no further back from a tensor.
      numbers_only: whether to follow no more than what numbers are computed from.
    """
    waiting = deque(tensor for tensor in tensors if _is_symbolic(tensor))
    seen = set()
    while waiting:
        tensor = waiting.popleft()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        outer = captured(tensor)
        if outer is None:
            yield tensor
        if not is_end(tensor):
            inputs = tensor.op.inputs if outer is None else (outer,)
            waiting.extend(
                t
                for t in inputs
                if _is_symbolic(t) and (is_scalable(t) or not numbers_only)
            )


def _seen_from_here(flag: FiniteFlag) -> FiniteFlag | None:
    """Return a flag that can be used in the present part of a graph.

    That of an old branch is True where the branch is not taken, and has updated the
    scale there. None of what is in the frames of an old loop: each round has a flag of
    its own.
    """
    finite = flag.finite
    here = tracing.frames_of(tf.compat.v1.get_default_graph())
    for frame in tracing.frames_of(finite.op):
        if finite is None or frame in here:
            break
        finite = tracing.true_unless_taken(finite, frame)
    if finite is None or finite is flag.finite:
        return None if finite is None else flag
    return dataclasses.replace(flag, finite=finite, own=finite, updated=None)


def _is_symbolic(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy")


# By optimizer: what states held when it was last asked, by state and replica.
_last_values: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = (
    weakref.WeakKeyDictionary()
)


def is_to_be_taken(parts: Sequence[Any], states: Sequence[Any], optimizer: Any) -> bool:
    """Return whether gradients come from calls that were finite, as far as is known.

    Args:
      parts: eager tensors.
      states: that the calls may have changed.
      optimizer: that is to apply them; None: something else is.
    """
    noted = [getattr(part, _FINITE, None) for part in parts]
    known = [finite for finite in noted if finite is not None]
    if not all(bool(finite) for finite in known):
        return False
    if len(known) == len(parts):
        return True
    # Each replica that asks is to decide alike.
    replica = 0
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        replica = int(tf.distribute.get_replica_context().replica_id_in_sync_group)
    before = {} if optimizer is None else _last_values.setdefault(optimizer, {})
    news = []
    for state in states:
        key, values = (state, replica), state.values_in(state.read())
        if values != (before.get(key) or state.values_in(state.initial())):
            news.append(values)
        before[key] = values
    if news and not any(values["finite"] for values in news):
        return False
    return not states or bool(agreed(are_finite(parts)))


def is_to_be_written(target: Any, value: Any, states: Sequence[Any]) -> bool:
    """Return whether a variable is to take up a value, or the sum with one.

    Args:
      target: the variable's handle.
      value: an eager tensor.
      states: of loss scales.
    """
    noted = getattr(value, _FINITE, None)
    if noted is not None:
        finite = bool(noted)
    else:
        overflowed = (s.has_overflowed() for s in states if s.suits(target))
        finite = not any(map(bool, overflowed)) or bool(are_finite([value]))
    # A variable begins with what it is given.
    return finite or not tf.raw_ops.VarIsInitializedOp(resource=target)


class _Thread(threading.local):
    """Counts how many times a thread has asked whether replicas meet."""

    asked: int = 0


_thread = _Thread()


@dataclasses.dataclass
class OverflowCounter:
    """Where overflows are added up.

    Attributes:
      variable: vector.
      place: of their number in it.
      is_of_replica: whether each replica adds up its own, and its calls behind them.
      limit: what the scale was cut to for any of these calls.
      made_by: the thread that has made it.
      made_after: how many times that one had asked before whether to meet.
    """

    variable: Any
    place: int = 0
    is_of_replica: bool = False
    limit: float = math.inf
    made_by: weakref.ref[threading.Thread] = dataclasses.field(
        default_factory=lambda: weakref.ref(threading.current_thread())
    )
    made_after: int = dataclasses.field(default_factory=lambda: _thread.asked)

    def is_everywhere(self) -> bool:
        """Return whether all replicas find this counter where this one asks.

        Each is a thread of its own for one step, and the first one is ahead: it may
        have made the counter further along than where this one is.
        """
        maker = self.made_by()
        if maker is None or maker is threading.current_thread():
            return True
        return not maker.is_alive() or _thread.asked >= self.made_after


# On a state, by whether they are of replicas.
_COUNTERS = "_tf_amp_overflow_counters"


def overflow_counters_of(state: ScaleState) -> list[OverflowCounter]:
    """Return the counters of a state, and what there is beside them."""
    counters = state.variables_by_kind["counters"]
    counted = OverflowCounter(counters, state.names["counters"].index("skipped_steps"))
    return [counted, *further_counters_of(state)]


def further_counters_of(state: ScaleState) -> list[OverflowCounter]:
    """Return those in which something may have been noted."""
    return list(kept_with(state, _COUNTERS).values())


def note_repeated(state: ScaleState, overflowed: Any) -> list[Any]:
    """Add up an overflow within a part of a function; return the operations that do.

    Args:
      state: of the loss scale.
      overflowed: whether there was one that is not counted, bool scalar.
    """
    if state.in_graph or state.is_per_worker:
        return []
    variable = _counter(state, is_of_replica=False).variable
    one = tf.cast(tf.stack([overflowed]), variable.dtype)
    return [variable.assign_add(one, read_value=False)]


def can_check() -> bool:
    """Return whether gradients taken here can be checked; if not, say it once."""
    if private.can_merge() or is_eager_outside():
        return True
    Code.NOT_SCALED.warn_once(
        "Losses are not scaled, and gradients not checked, in functions and "
        "branches that the replicas of a strategy trace within a tf.Graph."
    )
    return False


def note_of_replica(state: ScaleState, finite: Any, limit: float) -> list[Any]:
    """Count a call of this replica; return the operation that does.

    Args:
      state: of the loss scale.
      finite: whether its gradients are, bool scalar.
      limit: what the scale was cut to.
    """
    counter = _counter(state, is_of_replica=True)
    counter.limit = min(counter.limit, limit)
    overflowed = tf.cast(tf.logical_not(finite), tf.float32)
    return [counter.variable.assign_add(tf.stack([overflowed, 1.0]), read_value=False)]


def let_replicas_meet(
    states: Sequence[ScaleState], gradients: Sequence[Any]
) -> list[Any]:
    """Let replicas meet; return whether noted gradients were finite in all of them.

    Args:
      states: of the loss scales that gradients taken here may have changed.
      gradients: in true units.

    Returns:
      A bool scalar for each state that something may have been noted for.
    """
    noted = []
    for state in states:
        for counter in further_counters_of(state):
            if not counter.is_of_replica or not counter.is_everywhere():
                continue
            counts = counter.variable
            overflows, calls = tf.unstack(summed_over_replicas(counts.read_value()))
            counts.assign(tf.zeros_like(counts), read_value=False)
            finite = tf.equal(overflows, 0.0)
            largest, limit = functools.partial(largest_of, gradients), counter.limit
            ScaleUpdate(state, state.read(), largest, calls > 0, limit).apply(finite)
            noted.append(finite)
    _thread.asked += 1
    return noted


def _counter(state: ScaleState, *, is_of_replica: bool) -> OverflowCounter:
    made: dict[bool, OverflowCounter] = kept_with(state, _COUNTERS)
    if is_of_replica in made:
        return made[is_of_replica]

    def make() -> Any:
        with state.strategy.scope():
            if is_of_replica:
                return tf.Variable(
                    [0.0, 0.0],
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                    name="tf_amp_noted",
                )
            counters = state.variables_by_kind["counters"]
            local = state.strategy.experimental_local_results(counters)[0]
            with tf.device(local.device):
                return tf.Variable(
                    tf.zeros([1], tf.int64),
                    trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                    name="tf_amp_repeated_overflows",
                )

    variable = made_outside(make)
    made[is_of_replica] = OverflowCounter(variable, is_of_replica=is_of_replica)
    return made[is_of_replica]
