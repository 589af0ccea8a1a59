"""What a loss scale's state becomes after a call for gradients, finite or not.

The sum of the gradients' squares is finite only if all of them are, and costs one
operation for each. It overflows also where they are beyond 10^19: only then is each
value looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.annotations import FINITE_BRANCH
from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private import training as private
from tf_amp.config.loss_scales.protocol import Seen, State, check_names, find_rests
from tf_amp.training.scale_state import ScaleState, Vectors

# What shows that a call has been counted.
_COUNTED = ("skipped_steps", "good_steps", "scale")
# Adds operations, given a bool scalar: whether gradients are finite.
Watching = Callable[[Any], list[Any]]
# Held by the thread that adjusts a state outside of graphs.
_adjusting = renewed_lock()


@dataclasses.dataclass(frozen=True, eq=False)
class ScaleUpdate:
    """How to adjust a state, once it is known how gradients came out.

    Attributes:
      state: what is adjusted.
      vectors: its values when the gradients were scaled.
      largest: returns the largest absolute value of the gradients, on any replica, as
        a finite float32 scalar, in true units.
      counts: whether this call is to count, bool scalar: an overflow of the gradients
        that its own were made from explains one here. None for surely.
      limit: what the scale was cut to, where it was higher. An overflow says that this
        is too much, finite gradients say nothing of what is beyond.
    """

    state: ScaleState
    vectors: Vectors
    largest: Callable[[], Any]
    counts: Any = None
    limit: float = math.inf

    def apply(self, finite: Any) -> list[Any]:
        """Adjust the state; return the operations that do, or what they leave.

        Args:
          finite: whether the gradients were, on every replica; bool scalar.
        """
        if must_select():
            reading = self.state.unpacked(self.vectors)
            counts = tf.constant(True) if self.counts is None else self.counts
            overflowed = tf.logical_not(finite)
            good = self._values_after(True, tf.logical_and(finite, counts), reading)
            bad = self._values_after(False, tf.logical_and(overflowed, counts), reading)
            values = {}
            for name in {**good, **bad}:
                before = reading[name]
                after = tf.where(finite, good.get(name, before), bad.get(name, before))
                values[name] = tf.where(counts, after, before)
            return self.state.write(values, reading)
        if not tf.executing_eagerly() and not private.in_function():
            # Gradients of gradients wait for what the inner ones have updated: the lock
            # may be taken only once nothing more is waited for.
            known = [finite] if self.counts is None else [finite, self.counts]
            with tf.control_dependencies(known):
                return [self.state.alone(lambda: self._apply_anew(finite))]
        with _adjusting if tf.executing_eagerly() else contextlib.nullcontext():
            return [self._apply_anew(finite)]

    def apply_in_function(
        self, sum_is_finite: Any, look: Callable[[], Any], pass_inputs: Watching
    ) -> Any:
        """Adjust the state within a function; return whether gradients are finite.

        One short branch serves the ordinary step, which only counts. All else is in a
        function of its own: nodes of a branch that is not taken cost time too.

        Args:
          sum_is_finite: where True, so is each gradient; bool scalar.
          look: returns whether each is; made in that function.
          pass_inputs: adds what an overflow leads to, by whether gradients are finite.
        """
        # Whether a finite step does nothing but count; None: not known.
        values = self.state.unpacked(self.vectors)
        rests = find_rests(self.state.loss_scale)(values)
        if self.counts is not None:
            rests = None
        elif rests is not None:
            rests = tf.equal(values["finite"], 1) & rests

        def take_note() -> Any:
            if rests is None:
                anew = self._read_anew()
                return anew._if_it_counts(lambda: anew._write(True))
            counting = self.state.count_step()
            # Where it runs by itself, the update need not wait for it.
            waits = not private.runs_what_is_written()
            with tf.control_dependencies([counting] if waits else []):
                return tf.constant(True)

        def look_and_update() -> Any:
            finite = look()
            with tf.control_dependencies([self._apply_anew(finite)]):
                return tf.identity(finite)

        def take_care() -> Any:
            finite = private.as_one_operation(look_and_update)()
            with tf.control_dependencies(pass_inputs(self.but_for_earlier(finite))):
                return tf.identity(finite)

        ordinary = sum_is_finite if rests is None else sum_is_finite & rests
        return tf.cond(ordinary, take_note, take_care, name=FINITE_BRANCH)

    def with_earlier(self, finite: Any) -> Any:
        """Return whether gradients, and those they were made from, are finite."""
        return finite if self.counts is None else finite & self.counts

    def but_for_earlier(self, finite: Any) -> Any:
        """Return whether gradients are finite, or cannot be for those before them."""
        return finite if self.counts is None else finite | ~self.counts

    def counting_since(self, vectors_then: Vectors, finite: Any) -> ScaleUpdate:
        """Return how to update it where others may have been counted since a reading.

        An overflow counts unless another has been, finite gradients unless anything
        has. Where iterations of a loop run side by side, another one shows in the
        counters or in a scale that is lower: they are not written at once.
        """
        vectors = self.state.read()
        now, then = map(self.state.unpacked, (vectors, vectors_then))
        same = {name: tf.equal(now[name], then[name]) for name in _COUNTED}
        unchanged = tf.reduce_all(tf.stack(list(same.values())))
        no_other = same["skipped_steps"] & (now["scale"] >= then["scale"])
        counts = tf.where(finite, unchanged, no_other)
        counts = counts if self.counts is None else counts & self.counts
        return dataclasses.replace(self, vectors=vectors, counts=counts)

    def _apply_anew(self, finite: Any) -> Any:
        """Adjust the state as it is by now: another loss may have adjusted it."""
        anew = self._read_anew()
        return anew._if_it_counts(
            lambda: tf.cond(
                finite, lambda: anew._write(True), lambda: anew._write(False)
            )
        )

    def _read_anew(self) -> ScaleUpdate:
        return dataclasses.replace(self, vectors=self.state.read_anew())

    def _if_it_counts(self, update: Callable[[], Any]) -> Any:
        if self.counts is None:
            return update()
        return tf.cond(self.counts, update, lambda: tf.constant(True))

    def _write(self, finite: bool) -> Any:
        # Unpacked within the branch, which then captures vectors, not each value.
        before = self.state.unpacked(self.vectors)
        after = self._values_after(finite, tf.constant(True), before)
        written = self.state.write(after, before)
        with tf.control_dependencies(symbolic(written)):
            return tf.constant(finite)

    def _values_after(
        self, finite: bool, applies: Any, reading: State
    ) -> dict[str, Any]:
        """Return the values of the state that finite, or other, gradients change."""
        seen = Seen(finite, applies, self.largest)
        if finite:
            counters = {"good_steps": reading["good_steps"] + 1, "finite": 1}
        else:
            skipped = reading["skipped_steps"] + 1
            counters = {"good_steps": 0, "skipped_steps": skipped, "finite": 0}
            if self.limit < math.inf:
                cut = tf.minimum(reading["scale"], self.limit)
                reading = {**reading, "scale": cut}
        loss_scale = self.state.loss_scale
        changed = {**counters, **loss_scale.adjust(reading, seen)}
        check_names(loss_scale, changed, reading)
        return {name: tf.cast(v, reading[name].dtype) for name, v in changed.items()}


def joined(scale_updates: Sequence[ScaleUpdate]) -> ScaleUpdate:
    """Return the update of several calls at once, of one state."""
    return dataclasses.replace(
        scale_updates[0],
        largest=lambda: tf.reduce_max([one.largest() for one in scale_updates]),
        limit=min(one.limit for one in scale_updates),
    )


def symbolic(values: Sequence[Any]) -> list[Any]:
    """Return the results that can be waited for; none under eager execution."""
    if tf.executing_eagerly():
        return []
    return [value for value in values if value is not None]


def is_scalable(value: Any) -> bool:
    """Return whether something is a tensor that a loss scale can multiply."""
    return isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_complex
    )


def are_finite(gradients: Sequence[Any]) -> Any:
    """Return whether all gradients are finite, bool scalar."""
    if private.in_xla_context():
        return each_is_finite(gradients)
    return tf.cond(
        sum_is_finite(gradients),
        lambda: tf.constant(True),
        lambda: each_is_finite(gradients),
    )


def sum_is_finite(gradients: Sequence[Any]) -> Any:
    """Return whether the sum of all squares is finite: then each is; bool scalar."""
    return tf.math.is_finite(tf.add_n([_sum_of_squares(g) for g in gradients]))


def each_is_finite(gradients: Sequence[Any]) -> Any:
    """Return whether all gradients are finite, looking at each value; bool scalar."""

    def is_finite(gradient: Any) -> Any:
        if not gradient.dtype.is_complex:
            return tf.math.is_finite(gradient)
        real, imaginary = tf.math.real(gradient), tf.math.imag(gradient)
        return tf.logical_and(tf.math.is_finite(real), tf.math.is_finite(imaginary))

    @functools.cache
    def all_axes(rank: int | None) -> Any:
        """Return them for all gradients of a rank, as one operation."""
        return None if rank is None else tf.constant([*range(rank)], tf.int32)

    flags = [tf.reduce_all(is_finite(g), all_axes(g.shape.rank)) for g in gradients]
    return tf.reduce_all(tf.stack(flags))


def largest_of(gradients: Sequence[Any]) -> Any:
    """Return the largest absolute value, on any replica, as a finite float32 scalar."""
    sizes = [tf.cast(tf.abs(gradient), tf.float32) for gradient in gradients]
    # The maximum of nothing is -inf.
    largest = tf.reduce_max(tf.stack([0.0, *map(tf.reduce_max, sizes)]))
    # What only float64 holds has become infinite.
    largest = tf.minimum(largest, tf.float32.max)
    if not on_several_replicas():
        return largest
    context = tf.distribute.get_replica_context()
    # Replicas exchange sums and means only: in a vector, each has a place of its own.
    place, places = context.replica_id_in_sync_group, context.num_replicas_in_sync
    own = tf.one_hot(place, places, on_value=largest, off_value=0.0)
    return tf.reduce_max(summed_over_replicas(own))


def agreed(finite: Any) -> Any:
    """Return whether something holds on all replicas."""
    if not on_several_replicas():
        return finite
    against = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(summed_over_replicas(against), 0.0)


def summed_over_replicas(own: Any) -> Any:
    """Return the sum of what each replica has."""
    if not on_several_replicas():
        return own
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, own)


def on_several_replicas() -> bool:
    """Return whether this code is run, or traced, once for each of several replicas."""
    if tf.distribute.in_cross_replica_context():
        return False
    return bool(tf.distribute.get_replica_context().num_replicas_in_sync > 1)


def must_select() -> bool:
    """Return whether both of two outcomes are to be computed, and one taken.

    XLA does that faster than it branches, and replicas cannot meet within branches: not
    even one that is alone.
    """
    if private.in_xla_context() or on_several_replicas():
        return True
    return private.is_replica_thread()


def _sum_of_squares(gradient: Any) -> Any:
    """Return half of it, float32 scalar."""
    if gradient.dtype.is_complex:
        parts = tf.math.real(gradient), tf.math.imag(gradient)
        return tf.add_n([_sum_of_squares(part) for part in parts])
    return tf.cast(tf.nn.l2_loss(gradient), tf.float32)
