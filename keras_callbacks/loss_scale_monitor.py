"""The loss scale of a run in History and the progress bar."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from keras_callbacks.callback import Logs, Monitor, never_raising
from keras_callbacks.running_fit.scale_readings import ScaleReading, ScaleReadings
from keras_callbacks.running_fit.summaries import STEPS_AT_ONCE
from tf_amp.config.loss_scales.arguments import check_count


class LossScaleMonitor(Monitor):
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
        self._readings: ScaleReadings | None = None
        self.latest = ScaleReading()
        self._read_at = 0
        self._unread: list[tuple[int, Callable[[], ScaleReading]]] = []
        progress = self.sibling("ProgbarLogger")
        shown_as_is = getattr(progress, "stateful_metrics", None)
        if isinstance(shown_as_is, set):
            shown_as_is.update(self.latest.as_logs())

    @never_raising
    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Count on from the epochs before; remember the scale before the first one."""
        if self._readings is None:
            self._readings = ScaleReadings(self.model)
        self._readings.begin_epoch()

    @never_raising
    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Write the latest reading into the logs; take one every so many batches."""
        readings = self._readings
        if readings is None:
            return
        readings.end_batch(batch, self.params)
        if self._summaries.are_wanted and (unread := readings.unread()):
            self._unread.append((readings.steps, unread))
        if len(self._unread) >= STEPS_AT_ONCE:
            self._write_steps()
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
        self._write_steps()
        self._read()
        if logs is not None:
            logs.update(self.latest.as_logs())
        self._summaries.write(self.latest.as_logs(), epoch)

    def _write_steps(self) -> None:
        unread, self._unread = self._unread, []
        self._summaries.write_steps((step, read().as_logs()) for step, read in unread)

    def _read(self) -> None:
        if self._readings is not None:
            self.latest = self._readings.read()
            self._read_at = self._readings.steps
