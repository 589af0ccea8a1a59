"""The loss scale of a running `fit`, in History and the progress bar.

There may be several loss scales in a process. The one in use is the one whose state
has changed since `fit` began; where none has, nothing is scaled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from keras_callbacks.callback import Logs, Monitor, never_raising
from keras_callbacks.step_functions import number, steps_up_to
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.training import checkpoint_record, scale_state
from tf_amp.training.checkpoint_record import kind_of
from tf_amp.training.scale_state import handles_of

# Points of a history.
_MOST = 2000


@dataclasses.dataclass(frozen=True)
class ScaleReading:
    """A loss scale after the steps so far.

    Attributes:
      loss_scale: what losses are multiplied by; 1 where nothing is scaled.
      skipped_steps: steps whose gradients overflowed, since the scale was new; where an
        optimizer scales losses, those of this `fit`, NaN if they are not known.
      good_steps: steps with finite gradients since an overflow or a change of scale;
        where nothing is scaled, the steps of this `fit`.
      skipped_here: of the skipped steps those of this `fit`.
      is_own: whether it is the optimizer's own, and not this package's.
    """

    loss_scale: float = 1.0
    skipped_steps: float = 0
    good_steps: int = 0
    skipped_here: float = 0
    is_own: bool = False

    def as_logs(self) -> dict[str, float | int]:
        """Return what goes into the logs."""
        return {
            "loss_scale": self.loss_scale,
            "skipped_steps": self.skipped_steps,
            "good_steps": self.good_steps,
        }


class ScaleReadings:
    """Reads the loss scale of one `fit`; each reading waits for the device.

    `steps` are those of this `fit` so far, by the batches that Keras reports.
    """

    def __init__(self, model: Any = None) -> None:
        """Remember how all states are before the first step.

        To be made once a checkpoint that is resumed from has been restored. The
        optimizer of the model may scale losses by itself.
        """
        optimizer: Any = getattr(model, "optimizer", None)
        self.steps = self._steps_before = 0
        self._begin = {
            id(state): _reading_of(state.evaluate())
            for state in scale_state.states_here()
        }
        # What states that a model is still to make begin with, by kind. Those of models
        # that are not built would raise, or have none.
        is_built = getattr(model, "built", False)
        weights = handles_of(model.trainable_variables if is_built else ())
        waiting = checkpoint_record.still_waiting(weights)
        self._restored = {state.kind: _reading_of(state.values) for state in waiting}
        self._state: Any = None
        # Keras' own optimizer that scales losses, if it is one, before the first step.
        self._optimizer, self._own_begin = None, ScaleReading()
        if scales_losses(optimizer):
            self._optimizer = optimizer
            self._applied_before = number(OwnScale.of(optimizer).applied_steps)
            self._own_begin = self._unread_own()()

    def begin_epoch(self) -> None:
        """Count on from the epochs before."""
        self._steps_before = self.steps

    def end_batch(self, batch: int, params: Mapping[str, Any] | None) -> None:
        """Count a batch of the epoch; arguments as for `steps_up_to`."""
        self.steps = self._steps_before + steps_up_to(batch, params)

    def read(self) -> ScaleReading:
        """Return how the loss scale is now."""
        if self._optimizer is not None:
            return self._unread_own()()
        values = ((state, state.evaluate()) for state in self._candidates())
        return self._reading(values, self.steps)

    def unread(self) -> Callable[[], ScaleReading] | None:
        """Return what reads the loss scale as it is now, once it is called.

        Only that waits for the device. None where workers would have to be asked.
        """
        if self._optimizer is not None:
            return self._unread_own()
        states = self._candidates()
        if any(state.is_per_worker for state in states):
            return None
        steps, vectors = self.steps, [(state, state.snapshot()) for state in states]
        return lambda: self._reading(
            ((state, state.values_in(each)) for state, each in vectors), steps
        )

    def _candidates(self) -> list[Any]:
        return scale_state.states_here() if self._state is None else [self._state]

    def _reading(
        self, states: Iterable[tuple[Any, Mapping[str, float | int]]], steps: int
    ) -> ScaleReading:
        for state, values in states:
            now, before = _reading_of(values), self._begin_of(state)
            if self._state is None and now != before:
                self._state = state
            if self._state is state:
                here = max(now.skipped_steps - before.skipped_steps, 0)
                return dataclasses.replace(now, skipped_here=here)
        return ScaleReading(good_steps=steps)

    def at_begin(self) -> ScaleReading:
        """Return how the loss scale read last was before the first step."""
        return self._own_begin if self._state is None else self._begin_of(self._state)

    def _begin_of(self, state: Any) -> ScaleReading:
        known = self._begin.get(id(state))
        restored = self._restored.get(kind_of(state.loss_scale))
        return known or restored or _reading_of(state.fresh)

    def _unread_own(self) -> Callable[[], ScaleReading]:
        own, steps = OwnScale.of(self._optimizer), self.steps
        values = (own.scale, own.good_steps, own.applied_steps)
        tensors = [tf.convert_to_tensor(value) for value in values]

        def read() -> ScaleReading:
            scale, good, applied = map(number, tensors)
            # In this order, so that what is not known stays NaN.
            skipped = max(steps - (applied - self._applied_before), 0)
            skipped = skipped if math.isnan(skipped) else int(skipped)
            return ScaleReading(scale, skipped, int(good), skipped, True)

        return read


def _reading_of(values: Mapping[str, float | int]) -> ScaleReading:
    scale, skipped, good = (values[n] for n in ("scale", "skipped_steps", "good_steps"))
    return ScaleReading(float(scale), int(skipped), int(good))


def scales_losses(optimizer: Any) -> bool:
    """Return whether an optimizer is one of Keras' loss scale optimizers."""
    names = (kind.__name__ for kind in type(optimizer).__mro__)
    return any("LossScaleOptimizer" in name for name in names)


class OwnScale(NamedTuple):
    """How one of Keras' loss scale optimizers is: tensors, variables or numbers.

    Attributes:
      scale: what losses are multiplied by.
      left_on_gradients: what gradients are still multiplied by when they are applied.
      good_steps: finite steps since an overflow or a change of scale.
      applied_steps: steps taken, not those skipped; NaN if not known.
    """

    scale: Any
    left_on_gradients: Any
    good_steps: Any
    applied_steps: Any

    @classmethod
    def of(cls, optimizer: Any) -> OwnScale:
        """Read an optimizer of either Keras.

        That of tf_keras is given gradients in true units, and counts skipped steps as
        if they had been taken. That of Keras 3 has its variables once it is built, and
        takes the scale off gradients when it applies them.
        """
        is_of_tf_keras = hasattr(optimizer, "get_unscaled_gradients")
        name = "dynamic_counter" if is_of_tf_keras else "step_counter"
        counter = getattr(optimizer, name, None)
        good = 0 if counter is None else counter
        if is_of_tf_keras:
            return cls(optimizer.loss_scale, 1.0, good, math.nan)
        built = optimizer.built
        scale = optimizer.dynamic_scale if built else optimizer.initial_scale
        return cls(scale, scale, good, optimizer.inner_optimizer.iterations)


class ScalePoint(NamedTuple):
    """A loss scale after a step.

    Attributes:
      step: counted from the begin of `fit`.
      loss_scale: what losses were multiplied by.
      skipped_steps: so far.
      overflow_origin: what overflowed first, where a step was skipped since the point
        before; empty elsewhere.
    """

    step: int
    loss_scale: float
    skipped_steps: float
    overflow_origin: str = ""


class ScaleHistory:
    """Points of one `fit`: each step at first, of long runs every second, fourth, ...

    Points at which something changed are kept as long as there are not too many.
    """

    def __init__(self) -> None:
        """Hold nothing yet, and want every step."""
        self.points: list[ScalePoint] = []
        self._stride = 1

    def wants(self, step: int) -> bool:
        """Return whether there should be a point after this step."""
        return step % self._stride == 0

    def add(self, point: ScalePoint) -> None:
        """Add a point, later than those before."""
        self.points.append(point)
        if len(self.points) > _MOST:
            self._stride *= 2
            pairs = zip(self.points[-1:] + self.points, self.points, strict=False)
            self.points = [
                each
                for place, (before, each) in enumerate(pairs)
                if place % 2 == 0 or each is point or each[1:3] != before[1:3]
            ][-_MOST:]


class ScaleMonitor(Monitor):
    """A monitor that reads the loss scale of a `fit`, from its first epoch on."""

    _readings: ScaleReadings | None = None

    def begin(self) -> None:
        """Forget an earlier run."""
        self._readings = None

    @never_raising
    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Count on from the epochs before; remember the scale before the first one."""
        if self._readings is None:
            self._readings = ScaleReadings(self.model)
        self._readings.begin_epoch()


class LossScaleMonitor(ScaleMonitor):
    """Writes `loss_scale`, `skipped_steps` and `good_steps` into the logs.

    They are there for every `fit`: 1, 0 and the number of steps where nothing is
    scaled. Other callbacks of the same `fit` see them, wherever they stand. TensorBoard
    has those of every step.

    Attributes:
      latest: the latest reading.
    """

    def __init__(self, every: int = 100) -> None:
        """Say how often the progress bar is to be brought up to date.

        Args:
          every: batches between two readings within an epoch, from 1 on; each waits
            for the device. At the end of an epoch it is always read.

        Raises:
          ConfigError: the number is none of those allowed.
        """
        self._every = check_count("LossScaleMonitor", "every", every)
        self.begin()

    # A progress bar of tf_keras reads the logs of each batch; only then are they to be
    # numbers, which waits for the device.
    @property
    def _supports_tf_logs(self) -> bool:
        return not self._shows_batches

    @property
    def _shows_batches(self) -> bool:
        return (self.params or {}).get("verbose", 0) in (1, "auto")

    def begin(self) -> None:
        """Forget an earlier run."""
        super().begin()
        self.latest = ScaleReading()
        self._read_at = 0
        progress = self.sibling("ProgbarLogger")
        shown_as_is = getattr(progress, "stateful_metrics", None)
        if isinstance(shown_as_is, set):
            shown_as_is.update(self.latest.as_logs())

    @never_raising
    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Write the latest reading into the logs; take one every so many batches."""
        readings = self._readings
        if readings is None:
            return
        readings.end_batch(batch, self.params)
        if self._summaries.are_wanted and (unread := readings.unread()):
            self._summaries.add_step(readings.steps, lambda: unread().as_logs())
        if not self._shows_batches:
            return
        if readings.steps == 1 or readings.steps - self._read_at >= self._every:
            self._read()
        if logs is not None:
            shown = self.latest
            # The steps of now, where nothing else counts them.
            if shown.good_steps == self._read_at and shown.loss_scale == 1.0:
                shown = dataclasses.replace(shown, good_steps=readings.steps)
            logs.update(shown.as_logs())

    @never_raising
    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Read once, and write it into the logs of the epoch."""
        self._summaries.write_steps()
        self._read()
        if logs is not None:
            logs.update(self.latest.as_logs())
        self._summaries.write(self.latest.as_logs(), epoch)

    def _read(self) -> None:
        if self._readings is not None:
            self.latest = self._readings.read()
            self._read_at = self._readings.steps
