"""What a loss scale's state becomes after a call for gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_amp.finiteness import largest_of, must_select
from tf_amp.loss_scaling.protocol import Seen, State
from tf_amp.loss_scaling.variables import ScaleState, Vectors


@dataclasses.dataclass(frozen=True, eq=False)
class Settlement:
    """How to adjust a state, once it is known how gradients came out.

    Attributes:
      state: what is adjusted.
      vectors: its values when the gradients were scaled.
      gradients: in true units.
      counts: whether this call is to count, bool scalar: an overflow of the gradients
        that its own were made from explains one here. None for surely.
    """

    state: ScaleState
    vectors: Vectors
    gradients: Sequence[Any]
    counts: Any = None

    def settle(self, finite: Any) -> list[Any]:
        """Adjust the state; return the operations that do, or what they leave.

        Args:
          finite: whether the gradients were, on every replica; bool scalar.
        """
        if must_select():
            before = self.state.unpacked(self.vectors)
            return self.state.write(self._selected(finite, before), before)
        if self.counts is None:
            return [self._branch(finite)]
        branched = tf.cond(
            self.counts, lambda: self._branch(finite), lambda: tf.constant(False)
        )
        return [branched]

    def _branch(self, finite: Any) -> Any:
        return tf.cond(finite, lambda: self._write(True), lambda: self._write(False))

    def _write(self, finite: bool) -> Any:
        # Unpacked within the branch, which then captures vectors, not each value.
        before = self.state.unpacked(self.vectors)
        after = self._values_after(finite, tf.constant(True), before)
        written = self.state.write(after, before)
        with tf.control_dependencies(symbolic(written)):
            return tf.constant(finite)

    def _selected(self, finite: Any, reading: State) -> Mapping[str, Any]:
        counts = tf.constant(True) if self.counts is None else self.counts
        overflowed = tf.logical_not(finite)
        good = self._values_after(True, tf.logical_and(finite, counts), reading)
        bad = self._values_after(False, tf.logical_and(overflowed, counts), reading)
        values = {}
        for name in {**good, **bad}:
            before = reading[name]
            after = tf.where(finite, good.get(name, before), bad.get(name, before))
            values[name] = tf.where(counts, after, before)
        return values

    def _values_after(
        self, finite: bool, applies: Any, reading: State
    ) -> dict[str, Any]:
        """Return what of the state changes after finite, or other, gradients."""
        seen = Seen(finite, applies, lambda: largest_of(self.gradients))
        if finite:
            counters = {"good_steps": reading["good_steps"] + 1, "finite": 1}
        else:
            skipped = reading["skipped_steps"] + 1
            counters = {"good_steps": 0, "skipped_steps": skipped, "finite": 0}
        changed = {**counters, **self.state.loss_scale.adjust(reading, seen)}
        return {name: tf.cast(v, reading[name].dtype) for name, v in changed.items()}


def symbolic(values: Sequence[Any]) -> list[Any]:
    """Return what of some results can be waited for; nothing under eager execution."""
    if tf.executing_eagerly():
        return []
    return [value for value in values if value is not None]
