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

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from grappler_pass.annotations import AGAIN, BARRIER, SCALE, SCALE_UPDATE
from grappler_pass.rewriting.second_try import Counters
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import attribute_of, frames_of, put_attribute
from tf_amp.config.loss_scales.protocol import LossScale, State
from tf_amp.tracing.stack import keeping_float32
from tf_amp.training import finite_flags, overflow_origin, scale_at_run_time
from tf_amp.training.finite_flags import FiniteFlag, flag_on, put_flag
from tf_amp.training.finite_steps import inner_flags
from tf_amp.training.gradient_seeds import FOR_THE_SCALE, dtype_of, scale_beside
from tf_amp.training.overflow_origin import warn_of_overflow
from tf_amp.training.scale_state import (
    ScaleState,
    Vectors,
    mark,
    state_of,
)
from tf_amp.training.scale_update import (
    ScaleUpdate,
    agreed,
    are_finite,
    each_is_finite,
    is_scalable,
    largest_of,
    must_select,
    sum_is_finite,
    symbolic,
)

# float16 holds no larger power of two.
_LARGEST_SEED = 2.0**15


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """What one call for gradients is scaled by, and how it counts.

    Attributes:
      state: of the loss scale.
      vectors: the values of the state, as read for the call.
      reading: the same by name, with the scale as the call's types can hold it.
      scale: what the loss is multiplied by, float32 scalar.
      limit: what the scale was cut to.
      power: of two, which the program multiplies the loss by itself: a float, or
        float32 scalar.
      is_repeated: whether it counts together with an earlier call.
      begun: the vectors when the tape was begun, if an overflow may be explained by
        others that were counted since.
    """

    state: ScaleState
    vectors: Vectors
    reading: State
    scale: Any
    limit: float = math.inf
    power: Any = 1.0
    is_repeated: bool = False
    begun: Vectors | None = None

    @property
    def is_known_ahead(self) -> bool:
        """Whether what the loss is multiplied by follows from the state alone."""
        return isinstance(self.power, float)

    def here(self) -> Scaling:
        """Return the same for use in the present graph.

        A function may be called again, with another scale: there it is read anew.
        """
        vectors = {k: _seen_from_here(v) for k, v in self.vectors.items()}
        if any(vector is None for vector in vectors.values()):
            vectors = dict(self.state.read())
        scaling = _scaling_by(self.state, vectors)._limited_to(self.limit)
        power = self.power if self.is_known_ahead else _seen_from_here(self.power)
        if power is not None:
            return scaling.relieved_by(power)
        # A function may be called again, with another number of the program's.
        if scale_at_run_time.is_eager_outside():
            return scaling.at_scale(scale_at_run_time.scale_at_work())
        return scaling

    def at_scale(self, scale: Any) -> Scaling:
        """Return a scaling by another scale."""
        reading = {**self.reading, "scale": scale}
        return dataclasses.replace(self, reading=reading, scale=scale)

    def again(self) -> Scaling:
        """Return the same for a call that counts together with this one."""
        return dataclasses.replace(self, is_repeated=True)

    def for_targets(self, targets: Sequence[Any]) -> Scaling:
        """Return a scaling whose seeds the types of all targets can hold."""
        is_narrow = any(dtype_of(target) == tf.float16 for target in targets)
        return self._limited_to(_LARGEST_SEED) if is_narrow else self

    def _limited_to(self, limit: float) -> Scaling:
        if limit == math.inf:
            return self
        scale = float(self.state.loss_scale.initial_state()["scale"])
        if scale > limit:
            logging.log_first_n(
                logging.WARNING,
                "Gradients of a float16 target start from float16: the loss scale %g "
                "is cut to %g for them.",
                1,
                scale,
                limit,
            )
        cut = self.at_scale(tf.minimum(self.scale, limit))
        return dataclasses.replace(cut, limit=limit)

    def relieved_by(self, power: Any) -> Scaling:
        """Return a scaling by less, since the program scales by as much.

        Args:
          power: of two; a float, or float32 scalar.
        """
        if isinstance(power, float) and power == 1.0:
            return self
        with keeping_float32(FOR_THE_SCALE):
            left = scale_beside(power, self.scale)
        return dataclasses.replace(self, power=self.power * power, scale=left)

    def seeds(self, seeds: Sequence[Any]) -> list[Any]:
        """Return the gradients to start from, scaled; None and whole numbers stay."""

        def scale(given: Sequence[Any]) -> list[Any]:
            reading = {**self.reading, "scale": self.scale}
            with keeping_float32(FOR_THE_SCALE):
                return list(self.state.loss_scale.scale(given, reading))

        return list(map_scalable(scale, list(seeds)))

    def unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Return true gradients, of at least float32's precision, behind a barrier.

        They are what the type of the scaled ones can hold, which they go back to:
        beyond float16's range, infinity.
        """
        wide = [_widened(gradient) for gradient in gradients]
        unscaled = self.for_a_while_unscaled(wide)
        for before, after in zip(wide, unscaled, strict=True):
            if after is not before:
                # Nothing that follows goes to low precision.
                mark(after, BARRIER)
        return [
            tf.cast(tf.cast(value, g.dtype), value.dtype) if _is_narrow(g) else value
            for value, g in zip(unscaled, gradients, strict=True)
        ]

    def for_a_while_unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Return true gradients that are to be scaled again; no barrier."""
        wide = [_widened(gradient) for gradient in gradients]
        reading = {**self.reading, "scale": self.scale}
        with keeping_float32(FOR_THE_SCALE):
            return list(self.state.loss_scale.unscale(wide, reading))


def scaling_of(loss_scale: LossScale, sources: Any = ()) -> Scaling:
    """Return the scaling of a call by a loss scale as it is now: see `state_of`."""
    state = state_of(loss_scale, sources)
    return _scaling_by(state, state.read())


def _scaling_by(state: ScaleState, vectors: Vectors) -> Scaling:
    reading = state.unpacked(vectors)
    return Scaling(state, vectors, reading, reading["scale"])


def results_of(scaling: Scaling, gradients: Any) -> Any:
    """Return a structure of scaled gradients in true units, and adjust the loss scale.

    None, integer parts of `IndexedSlices` and the like stay as they are.
    """

    def finish(scaled: Sequence[Any]) -> list[Any]:
        unscaled = scaling.unscaled(scaled)
        # Whether all of a call is in one graph, branch and loop, of this process: what
        # has no use for a loss scale there may take the call for what it is without.
        ends_here = (
            not tf.executing_eagerly()
            and not scaling.state.is_per_worker
            and scaling.scale.graph is tf.compat.v1.get_default_graph()
            and not any(frames_of(gradient.op) for gradient in unscaled)
            and private.can_merge()
        )
        _mark_scales(scaling, ends_here)
        is_ordinary = private.can_merge() and not scaling.is_repeated
        if not is_ordinary or not private.in_function() or must_select():
            return _checked(scaling, unscaled, lambda: are_finite(unscaled))
        # One branch serves the ordinary step.
        scale_update = _scale_update(scaling, unscaled)
        pass_inputs = overflow_origin.passing_inputs(
            tf.compat.v1.get_default_graph(), scaling.reading, scaling.state.loss_scale
        )
        with tf.name_scope(SCALE_UPDATE):
            finite = scale_update.apply_in_function(
                sum_is_finite(unscaled), lambda: each_is_finite(unscaled), pass_inputs
            )
        flag = FiniteFlag(scale_update.with_earlier(finite), finite, scale_update)
        return handed_on(flag, unscaled)

    return map_scalable(finish, gradients)


def _mark_scales(scaling: Scaling, ends_here: bool) -> None:
    """Mark scales by whether what they multiply is divided again in the same graph.

    Once it has not been, it never is. Gradients of a scaled loss may be taken again
    without the scale where they are.

    Args:
      scaling: whose scale was unpacked from a state, or is that divided by a number.
      ends_here: whether all is divided again as far as the present call goes.
    """
    for scale in (scaling.reading["scale"], scaling.scale):
        if hasattr(scale, "numpy") or scale.op.type not in ("RealDiv", "Unpack"):
            continue
        if attribute_of(scale.op, SCALE, 0) >= 0:
            place = scale.value_index if ends_here else -1
            put_attribute(scale.op, SCALE, i=place)
    if ends_here and not must_select():
        counters = scaling.state.names["counters"]
        places = map(counters.index, ("finite", "skipped_steps"))
        again = Counters(len(counters), *places).mark(scaling.scale.value_index)
        put_attribute(scaling.scale.op, AGAIN, s=again.encode())


def checked_results(scaling: Scaling, values: Any, finite: Any) -> Any:
    """Return values made of unscaled gradients, known to be finite or not."""
    return map_scalable(lambda parts: _checked(scaling, parts, lambda: finite), values)


def _checked(
    scaling: Scaling, unscaled: Sequence[Any], look: Callable[[], Any]
) -> list[Any]:
    """Adjust the loss scale; return the gradients, which show how they came out.

    `look` returns whether they are finite.
    """
    scale_update = _scale_update(scaling, unscaled)
    state = scaling.state
    adjusting: list[Any]
    with tf.name_scope(SCALE_UPDATE):
        finite = look()
        # Functions and graphs pass overflows on.
        if tf.executing_eagerly() and not bool(finite):
            warn_of_overflow(float(scaling.scale))
        watched = overflow_origin.watch(
            scale_update.but_for_earlier(finite), scaling.reading, state.loss_scale
        )
        if private.can_merge():
            finite = agreed(finite)
            counting = _counting_once(scaling, scale_update, finite)
            adjusting = counting.apply(finite)
            here = tf.compat.v1.get_default_graph()
            is_inside = scaling.is_repeated and private.in_function()
            if is_inside and scaling.vectors["counters"].graph is not here:
                # The tape lies outside: an overflow that is not counted is noted.
                overflowed = ~(finite | counting.counts)
                adjusting += finite_flags.note_repeated(state, overflowed)
        else:
            adjusting = finite_flags.note_of_replica(state, finite, scaling.limit)
        adjusting = symbolic(adjusting)
    with tf.control_dependencies([*adjusting, *watched]):
        whole = tf.identity(scale_update.with_earlier(finite))
    in_graph = not tf.executing_eagerly() and not private.in_function()
    waits = in_graph and scale_update.counts is None
    flag = FiniteFlag(
        finite=whole,
        own=finite,
        scale_update=scale_update,
        updated=whole.op if waits else None,
        adjusting=tuple(adjusting),
    )
    return handed_on(flag, unscaled)


def _counting_once(
    scaling: Scaling, scale_update: ScaleUpdate, finite: Any
) -> ScaleUpdate:
    """Return the update, together with the other calls that this one repeats.

    Outside of functions, inner gradients may have overflowed since the tape was begun.
    """
    # In a `tf.Graph` optimizers let the calls of one step share an update.
    runs_as_written = tf.executing_eagerly() or private.in_function()
    if scaling.is_repeated and runs_as_written:
        return scale_update.counting_since(scaling.vectors, finite)
    if scaling.begun is not None and not bool(finite):
        return scale_update.counting_since(scaling.begun, finite)
    return scale_update


def _scale_update(scaling: Scaling, unscaled: Sequence[Any]) -> ScaleUpdate:
    state = scaling.state
    earlier = inner_flags(unscaled, state)
    counts = tf.reduce_all(tf.stack(earlier)) if earlier else None

    def largest() -> Any:
        # As large as without the program's own number, which does not count.
        return largest_of(unscaled) / scaling.power

    return ScaleUpdate(state, scaling.vectors, largest, counts, scaling.limit)


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


def _is_narrow(gradient: Any) -> bool:
    return gradient.dtype in (tf.float16, tf.bfloat16)


def _widened(gradient: Any) -> Any:
    return tf.cast(gradient, tf.float32) if _is_narrow(gradient) else gradient


_SLOPE = "TfAmpResultOrNotANumber"


def handed_on(flag: FiniteFlag, gradients: Sequence[Any]) -> list[Any]:
    """Return gradients that carry a flag, which they wait for.

    Args:
      flag: on all of them.
      gradients: floating or complex.
    """
    if tf.executing_eagerly():
        finite = bool(flag.finite)
        # The slope of what is not selected is 0 * NaN.
        results = [
            tf.identity(g) if finite else tf.where(False, g * math.nan, g)
            for g in gradients
        ]
        put_flag(results, flag)
        return results
    graph, slope = tf.compat.v1.get_default_graph(), functools.partial(_slope, flag)
    override = graph.gradient_override_map({"Identity": _SLOPE})
    with override, tf.control_dependencies([flag.finite]):
        results = [private.with_slope(tf.identity, g, slope) for g in gradients]
    # Gradients of the results need not be made of them, but always of this.
    put_flag([flag.finite, *results], flag)
    return results


@tf.RegisterGradient(_SLOPE)  # type: ignore[untyped-decorator]
def _of_result(operation: Any, upstream: Any) -> Any:
    # TensorFlow asks what the slope is without any operation where it stores graphs.
    flag = flag_on(operation.outputs[0]) if operation is not None else None
    return upstream if flag is None else _slope(flag, upstream)


def _slope(flag: FiniteFlag, upstream: Any) -> Any:
    return upstream * tf.cast(tf.where(flag.finite, 1.0, math.nan), upstream.dtype)
