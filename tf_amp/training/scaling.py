"""One call for gradients: scaled seeds in, true gradients and a flag out.

Before   d loss / d weight
After    unscale(d (scale * loss) / d weight), and whether all of it is finite

Unscaling is in float32 at least and carries the barrier mark, so that whatever follows
sees true gradients in full precision.

What is computed from an overflow may be finite and wrong, once it is clipped: gradients
of it are NaN, which shows the call that takes them, wherever that is. In graphs, where
flags show the tapes, this is written into the results' own gradient: it takes no
operation unless it is asked for.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import frames_of
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.tracing.stack import keeping_float32
from tf_amp.training import finite_flags, overflow_origin, scale_at_run_time
from tf_amp.training.finite_flags import Vote, cast_vote, vote_on
from tf_amp.training.finite_steps import inner_flags
from tf_amp.training.gradient_seeds import FOR_THE_SCALE, dtype_of, scale_beside
from tf_amp.training.overflow_origin import warn_of_overflow
from tf_amp.training.scale_state import (
    ScaleState,
    Vectors,
    mark_scale,
    mark_second_try,
    mark_unscaled,
    scale_update_scope,
)
from tf_amp.training.scale_update import (
    ScaleUpdate,
    agreed,
    are_finite,
    is_scalable,
    largest_of,
    must_select,
    symbolic,
)
from tf_amp.training.states import state_of

# float16 holds no larger power of two.
_LARGEST_SEED = 2.0**15


class ScaledCall:
    """The state of a loss scale as one call for gradients uses it.

    Attributes:
      loss_scale: the specification.
    """

    def __init__(self, loss_scale: LossScale, sources: Any = ()) -> None:
        """Read the state, made with `sources` if there is none: see `state_of`."""
        self.loss_scale = loss_scale
        self._state = state_of(loss_scale, sources)
        self._vectors = self._state.read()
        self._reading = self._state.unpacked(self._vectors)
        self._limit = math.inf
        self._power: Any = 1.0
        self._relieved: Any = None
        self._is_repeated = False
        self._begun: Vectors | None = None

    def here(self) -> ScaledCall:
        """Return a call that is scaled as this one, for use in the present graph.

        A function may be called again, with another scale: there it is read anew.
        """
        vectors: Vectors = {k: _seen_from_here(v) for k, v in self._vectors.items()}
        if any(vector is None for vector in vectors.values()):
            vectors = self._state.read()
        call = self._with(_vectors=vectors, _reading=self._state.unpacked(vectors))
        call = call._with(_relieved=None, _power=1.0)._limited_to(self._limit)
        power = self._power if self.is_known_ahead else _seen_from_here(self._power)
        if power is not None:
            return call.relieved_by(power)
        # A function may be called again, with another number of the program's.
        if scale_at_run_time.is_eager_outside():
            return call.at_scale(scale_at_run_time.scale_at_work())
        return call

    @property
    def is_known_ahead(self) -> bool:
        """Whether what the loss is multiplied by follows from the state alone."""
        return isinstance(self._power, float)

    @property
    def scale(self) -> Any:
        """What the loss is multiplied by, float32 scalar."""
        return self._reading["scale"] if self._relieved is None else self._relieved

    def at_scale(self, scale: Any) -> ScaledCall:
        """Return a call with another scale."""
        return self._with(_reading={**self._reading, "scale": scale})

    def again(self) -> ScaledCall:
        """Return a call that is scaled as this one, and counts together with it."""
        return self._with(_is_repeated=True)

    def begun_with(self, readings: Mapping[ScaleState, Vectors]) -> ScaledCall:
        """Return a call whose overflow others explain that were counted since.

        Args:
          readings: of states, when the tape was begun; those made since are missing.
        """
        return self._with(_begun=readings.get(self._state) or self._state.initial())

    def for_targets(self, targets: Sequence[Any]) -> ScaledCall:
        """Return a call whose seeds the types of all targets can hold."""
        is_narrow = any(dtype_of(target) == tf.float16 for target in targets)
        return self._limited_to(_LARGEST_SEED) if is_narrow else self

    def _limited_to(self, limit: float) -> ScaledCall:
        if limit == math.inf:
            return self
        scale = float(self.loss_scale.initial_state()["scale"])
        if scale > limit:
            logging.log_first_n(
                logging.WARNING,
                "Gradients of a float16 target start from float16: the loss scale %g "
                "is cut to %g for them.",
                1,
                scale,
                limit,
            )
        return self.at_scale(tf.minimum(self.scale, limit))._with(_limit=limit)

    def relieved_by(self, power: Any) -> ScaledCall:
        """Return a call that scales by less, since the program scales by as much.

        Args:
          power: of two; a float, or float32 scalar.
        """
        if isinstance(power, float) and power == 1.0:
            return self
        with keeping_float32(FOR_THE_SCALE):
            left = scale_beside(power, self.scale)
        return self._with(_power=self._power * power, _relieved=left)

    def _with(self, **changes: Any) -> ScaledCall:
        call = copy.copy(self)
        vars(call).update(changes)
        return call

    def seeds(self, seeds: Sequence[Any]) -> list[Any]:
        """Return the gradients to start from, scaled; None and whole numbers stay."""

        def scale(given: Sequence[Any]) -> list[Any]:
            with keeping_float32(FOR_THE_SCALE):
                return list(self.loss_scale.scale(given, self._at_work()))

        scaled: list[Any] = map_scalable(scale, list(seeds))
        return scaled

    def unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Return true gradients, of at least float32's precision, behind a barrier.

        They are what the type of the scaled ones can hold, which they go back to.
        """
        wide = [_widened(gradient) for gradient in gradients]
        unscaled = self.for_a_while_unscaled(wide)
        for before, after in zip(wide, unscaled, strict=True):
            if after is not before:
                mark_unscaled(after)
        return [
            _rounded(value, gradient.dtype)
            for value, gradient in zip(unscaled, gradients, strict=True)
        ]

    def for_a_while_unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Return true gradients that are to be scaled again; no barrier."""
        wide = [_widened(gradient) for gradient in gradients]
        with keeping_float32(FOR_THE_SCALE):
            return list(self.loss_scale.unscale(wide, self._at_work()))

    def _at_work(self) -> Mapping[str, Any]:
        return {**self._reading, "scale": self.scale}

    def results(self, gradients: Any) -> Any:
        """Return a structure of scaled gradients in true units.

        None, integer parts of `IndexedSlices` and the like stay as they are.
        """

        def finish(scaled: Sequence[Any]) -> list[Any]:
            unscaled = self.unscaled(scaled)
            ends_here = self._ends_here(unscaled)
            for scale in (self._reading["scale"], self.scale):
                mark_scale(scale, ends_here)
            if ends_here and not must_select():
                mark_second_try(self.scale, self._state.names["counters"])
            is_ordinary = private.can_merge() and not self._is_repeated
            if is_ordinary and private.in_function() and not must_select():
                return self._checked_in_one(unscaled)
            return self._checked(unscaled, lambda: are_finite(unscaled))

        return map_scalable(finish, gradients)

    def checked_results(self, values: Any, finite: Any) -> Any:
        """Return what was made of unscaled gradients, known to be finite or not."""
        return map_scalable(lambda parts: self._checked(parts, lambda: finite), values)

    def _ends_here(self, unscaled: Sequence[Any]) -> bool:
        """Say whether all of a call is in one graph, branch and loop, of this process.

        Whoever has no use for a loss scale there may take the call for what it is
        without one.
        """
        if tf.executing_eagerly() or self._state.is_per_worker:
            return False
        is_here = self.scale.graph is tf.compat.v1.get_default_graph()
        in_frames = any(frames_of(gradient.op) for gradient in unscaled)
        return is_here and not in_frames and private.can_merge()

    def _checked(self, unscaled: Sequence[Any], look: Callable[[], Any]) -> list[Any]:
        """Adjust the loss scale; return the gradients, which show how they came out.

        `look` returns whether they are finite.
        """
        scale_update = self._scale_update(unscaled)
        adjusting: list[Any]
        with scale_update_scope():
            finite = look()
            # Functions and graphs pass overflows on.
            if tf.executing_eagerly() and not bool(finite):
                warn_of_overflow(float(self.scale))
            watched = overflow_origin.watch(
                scale_update.but_for_earlier(finite), self._reading, self.loss_scale
            )
            if private.can_merge():
                finite = agreed(finite)
                counting = self._counting_once(scale_update, finite)
                adjusting = counting.apply(finite) + self._noted(counting, finite)
            else:
                adjusting = finite_flags.note_of_replica(
                    self._state, finite, self._limit
                )
            adjusting = symbolic(adjusting)
        with tf.control_dependencies([*adjusting, *watched]):
            whole = tf.identity(scale_update.with_earlier(finite))
        in_graph = not tf.executing_eagerly() and not private.in_function()
        waits = in_graph and scale_update.counts is None
        vote = Vote(
            finite=whole,
            own=finite,
            scale_update=scale_update,
            updated=whole.op if waits else None,
            adjusting=tuple(adjusting),
        )
        return handed_on(vote, unscaled)

    def _counting_once(self, scale_update: ScaleUpdate, finite: Any) -> ScaleUpdate:
        """Return the update, together with the other calls that this one repeats.

        Outside of functions, inner gradients may have overflowed since the tape was
        begun.
        """
        # In a `tf.Graph` optimizers let the calls of one step share an update.
        runs_as_written = tf.executing_eagerly() or private.in_function()
        if self._is_repeated and runs_as_written:
            return scale_update.counting_since(self._vectors, finite)
        if self._begun is not None and not bool(finite):
            return scale_update.counting_since(self._begun, finite)
        return scale_update

    def _noted(self, counting: ScaleUpdate, finite: Any) -> list[Any]:
        """Note an overflow that is not counted, where the tape lies outside."""
        is_inside = self._is_repeated and private.in_function()
        here = tf.compat.v1.get_default_graph()
        if not is_inside or self._vectors["counters"].graph is here:
            return []
        return finite_flags.note_repeated(self._state, ~(finite | counting.counts))

    def _checked_in_one(self, unscaled: Sequence[Any]) -> list[Any]:
        """Do the same within a function, where one branch serves the ordinary step."""
        scale_update = self._scale_update(unscaled)
        pass_inputs = overflow_origin.passing_inputs(
            tf.compat.v1.get_default_graph(), self._reading, self.loss_scale
        )
        with scale_update_scope():
            finite = scale_update.apply_in_function(are_finite(unscaled), pass_inputs)
        vote = Vote(scale_update.with_earlier(finite), finite, scale_update)
        return handed_on(vote, unscaled)

    def _scale_update(self, unscaled: Sequence[Any]) -> ScaleUpdate:
        earlier = inner_flags(unscaled, self._state)
        counts = tf.reduce_all(tf.stack(earlier)) if earlier else None

        def largest() -> Any:
            # As large as without the program's own number, which does not count.
            return largest_of(unscaled) / self._power

        return ScaleUpdate(self._state, self._vectors, largest, counts, self._limit)


def map_scalable(compute: Callable[[list[Any]], list[Any]], structure: Any) -> Any:
    """Return a structure with its floating and complex parts computed anew."""
    flat = tf.nest.flatten(structure, expand_composites=True)
    places = [i for i, part in enumerate(flat) if is_scalable(part)]
    if not places:
        return structure
    results = compute([flat[i] for i in places])
    for i, result in zip(places, results, strict=True):
        flat[i] = tf.cast(result, flat[i].dtype)
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)


def _seen_from_here(tensor: Any) -> Any:
    """Return a tensor as it can be used in the present graph.

    None where it cannot: a function lies between, which may be called from elsewhere
    later.
    """
    if tf.executing_eagerly():
        return tensor
    if hasattr(tensor, "numpy"):
        return None
    graph, within = tf.compat.v1.get_default_graph(), []
    while graph is not tensor.graph:
        if not getattr(graph, "is_control_flow_graph", False):
            return None
        within.append(graph)
        graph = graph.outer_graph
    # The gradient of a branch is given tensors of the graph around it, of no other.
    for inner in reversed(within):
        with inner.as_default():
            tensor = tf.identity(tensor)
    return tensor


def _widened(gradient: Any) -> Any:
    if gradient.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(gradient, tf.float32)
    return gradient


def _rounded(value: Any, dtype: Any) -> Any:
    """Return a value as a type holds it: beyond float16's range it is infinite."""
    if dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tf.cast(value, dtype), value.dtype)
    return value


_SLOPE = "TfAmpResultOrNotANumber"


def handed_on(vote: Vote, gradients: Sequence[Any]) -> list[Any]:
    """Return gradients that carry a vote, which they wait for.

    Args:
      vote: on all of them.
      gradients: floating or complex.
    """
    if tf.executing_eagerly():
        finite = bool(vote.finite)
        # The slope of what is not selected is 0 * NaN.
        results = [
            tf.identity(g) if finite else tf.where(False, g * math.nan, g)
            for g in gradients
        ]
        cast_vote(results, vote)
        return results
    graph, slope = tf.compat.v1.get_default_graph(), functools.partial(_slope, vote)
    override = graph.gradient_override_map({"Identity": _SLOPE})
    with override, tf.control_dependencies([vote.finite]):
        results = [private.with_slope(tf.identity, g, slope) for g in gradients]
    # Gradients of the results need not be made of them, but always of this.
    cast_vote([vote.finite, *results], vote)
    return results


@tf.RegisterGradient(_SLOPE)  # type: ignore[untyped-decorator]
def _of_result(operation: Any, upstream: Any) -> Any:
    # TensorFlow asks what the slope is without any operation where it stores graphs.
    vote = vote_on(operation.outputs[0]) if operation is not None else None
    return upstream if vote is None else _slope(vote, upstream)


def _slope(vote: Vote, upstream: Any) -> Any:
    return upstream * tf.cast(tf.where(vote.finite, 1.0, math.nan), upstream.dtype)
