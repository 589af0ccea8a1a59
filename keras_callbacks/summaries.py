"""Numbers for TensorBoard, beside those of Keras' own callback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# A run of its own: of two files with events in one folder, TensorBoard follows one.
FOLDER = "precision"


class Summaries:
    """Writes scalars into the folder of a TensorBoard callback, where there is one."""

    def __init__(self, tensorboard: Any = None, model: Any = None) -> None:
        """Open nothing yet.

        Args:
          tensorboard: Keras' callback; None writes nothing.
          model: its strategy decides whether this process writes.
        """
        self._folder = _folder_of(tensorboard) if writes(model) else ""
        self._writer: Any = None

    def write(self, scalars: Mapping[str, float | int], step: int) -> None:
        """Write scalars under their names.

        Args:
          scalars: by name.
          step: the epoch, or the number of batches so far.
        """
        if not self._folder:
            return
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._folder)
        with self._writer.as_default(), tf.summary.record_if(True):
            for name, value in scalars.items():
                # As `tf.summary.scalar` does, which needs TensorBoard's own package.
                tf.summary.write(
                    name, tf.constant(value, tf.float32), step, _metadata()
                )
        self._writer.flush()

    def close(self) -> None:
        """Close the file, where one was opened."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _metadata() -> Any:
    from tensorflow.core.framework.summary_pb2 import SummaryMetadata

    plugin = SummaryMetadata.PluginData(plugin_name="scalars")
    return SummaryMetadata(plugin_data=plugin)


def writes(model: Any) -> bool:
    """Return whether this process writes what all workers of a model have in common."""
    strategy = getattr(model, "distribute_strategy", None)
    extended = getattr(strategy, "extended", None)
    return bool(getattr(extended, "should_save_summary", True))


def _folder_of(tensorboard: Any) -> str:
    folder = getattr(tensorboard, "log_dir", None)
    return os.path.join(os.fspath(folder), FOLDER) if folder else ""
