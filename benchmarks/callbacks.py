"""What the callbacks add to a step of ``fit``, at equal precision.

Two models train at the same time, in threads that take turns after each epoch: one with
AutoMixedPrecision and LossScaleMonitor, the other within a scope of the same options.
A tiny step shows what is added, one of about 20 ms what that amounts to.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_amp
from benchmarks.announcing import announcing
from benchmarks.report import markdown_table
from benchmarks.results import publish
from keras_callbacks import AutoMixedPrecision, LossScaleMonitor
from keras_callbacks.callback import Callback, Logs

KITS = {"Keras 3": keras, "tf_keras": tf_keras}
# Hidden layers of 1,024 units and examples in a batch.
SIZES = {"tiny": (0, 8), "20 ms": (4, 256)}
_UNITS = 1024
_STEP_MS = 20.0
# Until everything is traced, planned and warm.
_LEFT_OUT = 2
_OPTIONS = {"dtype": "bfloat16", "opt_level": "O2", "loss_scale": "dynamic"}


@dataclass
class Baton:
    """Lets threads run by turns."""

    names: tuple[str, ...]
    turn: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, name: str) -> None:
        """Wait for the turn of a thread."""
        with self.changed:
            self.changed.wait_for(lambda: self.names[self.turn] == name)

    def hand_on(self) -> None:
        """Let the next thread run."""
        with self.changed:
            self.turn = (self.turn + 1) % len(self.names)
            self.changed.notify_all()


class TurnTaking(Callback):
    """Times epochs, one at a time in the whole process."""

    def __init__(self, name: str, baton: Baton, steps: int) -> None:
        """Take part as ``name``; an epoch has ``steps`` steps."""
        self.step_seconds: list[float] = []
        self._name, self._baton, self._steps = name, baton, steps
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Wait for the turn."""
        self._baton.take(self._name)
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Note the time and give way."""
        seconds = time.perf_counter() - self._began
        self.step_seconds.append(seconds / self._steps)
        self._baton.hand_on()


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on callbacks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.callbacks")
    parser.add_argument("--rounds", type=int, default=40, help="epochs of each model")
    parser.add_argument("--steps", type=int, default=50, help="steps of an epoch")
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    rows, samples = [], {}
    with announcing(len(KITS) * len(SIZES)) as announce:
        for kit in KITS:
            for size in SIZES:
                announce(f"{kit}, {size}")
                seconds = measured(KITS[kit], *SIZES[size], options)
                rows.append(_row(kit, size, *seconds))
                samples[f"{kit}, {size}: without, with"] = seconds
    publish(
        "callbacks",
        _table(rows),
        samples,
        rounds=options.rounds,
        is_whole=not options.dry,
    )


def measured(
    kit: Any, layers: int, batch: int, options: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Return seconds of a step, epoch by epoch, without and with the callbacks."""
    baton = Baton(("without", "with"))
    timers = {n: TurnTaking(n, baton, options.steps) for n in baton.names}
    added = {
        "without": [],
        "with": [AutoMixedPrecision(**_OPTIONS, verbose=0), LossScaleMonitor()],
    }
    models = {name: _model(kit, layers) for name in baton.names}
    data = _data(batch, options.steps)

    def train(name: str) -> None:
        around = tf_amp.mixed_precision_scope(**_OPTIONS, enabled=name == "without")
        callbacks = [*added[name], timers[name]]
        with around:
            epochs = options.rounds + _LEFT_OUT
            models[name].fit(data, epochs=epochs, verbose=0, callbacks=callbacks)

    threads = [threading.Thread(target=train, args=(name,)) for name in baton.names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    without, with_them = (timers[n].step_seconds[_LEFT_OUT:] for n in baton.names)
    return without, with_them


def _model(kit: Any, layers: int) -> Any:
    hidden = [kit.layers.Dense(_UNITS, activation="relu") for _ in range(layers)]
    width = _UNITS if layers else 8
    model = kit.Sequential([kit.layers.Input([width]), *hidden, kit.layers.Dense(8)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def _data(batch: int, steps: int) -> tf.data.Dataset:
    width = 8 if batch == SIZES["tiny"][1] else _UNITS
    draws = np.random.default_rng(7)
    inputs = draws.normal(size=(batch, width)).astype("float32")
    targets = draws.normal(size=(batch, 8)).astype("float32")
    return tf.data.Dataset.from_tensors((inputs, targets)).repeat(steps)


def _row(
    kit: str, size: str, without: Sequence[float], with_them: Sequence[float]
) -> tuple[str, ...]:
    pairs = zip(without, with_them, strict=True)
    added_ms = statistics.median(b - a for a, b in pairs) * 1e3
    # What else runs on the machine only ever adds.
    least_ms = (min(with_them) - min(without)) * 1e3
    return (
        kit,
        size,
        f"{statistics.median(without) * 1e3:.3f}",
        f"{statistics.median(with_them) * 1e3:.3f}",
        *(f"{ms * 1e3:+.0f} ({ms / _STEP_MS:+.2%})" for ms in (added_ms, least_ms)),
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return the figures as Markdown."""
    added = "added µs (of 20 ms)"
    titles = ("", "step", "without ms", "with ms", added, f"{added}, fastest")
    return markdown_table(titles, rows)


if __name__ == "__main__":
    main()
