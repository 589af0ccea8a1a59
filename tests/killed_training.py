"""Trainings that are killed and resumed, each in a process of its own.

    python -m tests.killed_training WAY...

TensorFlow is imported once and each training forked off before anything has run. For
each way one line returns whether the resumed run came to what the unbroken one did, and
whether one did that is resumed without what tf-amp has kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_amp
from tests.checkpoint_ways import compiled, slots_of
from tf_amp.training import checkpoint_record, checkpoints, scale_state

v1 = tf.compat.v1
EPOCHS, BATCHES = 4, 4
# In the middle of an epoch and of a run of finite steps.
KILLED_AFTER = 10
# Overflows at first, and grows later.
LOSS_SCALE = "dynamic:initial=131072,growth_interval=3"

generator = np.random.default_rng(0)
X = generator.normal(size=(BATCHES, 8, 4)).astype(np.float32)
Y = X[:, :, :1] - 1

Tick = Callable[[], None]


def keras_fit(folder: pathlib.Path, tick: Tick, library=keras) -> str:
    """Train by `fit`, backed up after each epoch."""
    model = compiled(library)

    class Ticking(library.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            tick()

    backup = library.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False)
    model.fit(
        X.reshape(-1, 4),
        Y.reshape(-1, 1),
        batch_size=X.shape[1],
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[backup, Ticking()],
    )
    return digest([v.numpy() for v in [*model.weights, *slots_of(model.optimizer)]])


def tf_keras_fit(folder: pathlib.Path, tick: Tick) -> str:
    """Do the same with tf_keras."""
    return keras_fit(folder, tick, tf_keras)


def own_loop(
    folder: pathlib.Path, tick: Tick, sizes=(4, 8, 1), rows=8, saved_every=3
) -> str:
    """Train in a loop of one's own, with a checkpoint every few steps."""
    weights = [
        tf.Variable(tf.random.stateless_normal(shape, [1, 2]) / shape[0] ** 0.5)
        for shape in itertools.pairwise(sizes)
    ]
    step = tf.Variable(0, dtype=tf.int64)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(weights)
    saved = tf.train.Checkpoint(weights=weights, optimizer=optimizer, step=step)
    manager = tf.train.CheckpointManager(saved, str(folder), max_to_keep=2)
    saved.restore(manager.latest_checkpoint)

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.relu(x @ weights[0]) @ weights[1] - 1) ** 2)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        step.assign_add(1)

    while int(step) < EPOCHS * BATCHES:
        train(tf.random.stateless_normal((rows, sizes[0]), [int(step), 3]))
        if int(step) % saved_every == 0:
            manager.save()
        tick()
    return digest([v.numpy() for v in [*weights, *optimizer.variables]])


def priced(folder: pathlib.Path, tick: Tick) -> str:
    """Train products large enough for 16 bits to pay, if they are priced so."""
    return own_loop(folder, tick, (512, 512, 512), rows=256, saved_every=1)


def session(folder: pathlib.Path, tick: Tick) -> str:
    """Train in a MonitoredSession, with a checkpoint every third step."""
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, (None, 4))
        y = v1.placeholder(tf.float32, (None, 1))
        first = v1.get_variable("first", (4, 8), use_resource=True)
        second = v1.get_variable("second", (8, 1), use_resource=True)
        loss = tf.reduce_mean((tf.nn.relu(x @ first) @ second - y) ** 2)
        applied = v1.train.get_or_create_global_step()
        steps = v1.get_variable("steps", (), tf.int64, v1.zeros_initializer())
        train = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=applied)
        with tf.control_dependencies([train]):
            count = v1.assign_add(steps, 1)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), save_checkpoint_steps=3, log_step_count_steps=0
        ) as run:
            done = int(run.run(steps))
            while done < EPOCHS * BATCHES:
                batch = done % BATCHES
                done = int(run.run(count, {x: X[batch], y: Y[batch]}))
                tick()
            own = v1.get_collection(scale_state.PREFIX)
            return digest(run.run([*v1.trainable_variables(), *own]))


WAYS = {
    "priced": priced,
    "keras": keras_fit,
    "tf_keras": tf_keras_fit,
    "own_loop": own_loop,
    "session": session,
}


def digest(values) -> str:
    """Return a digest of values, and of the loss scale where it is at hand."""
    made = hashlib.sha256()
    for value in values:
        made.update(np.ascontiguousarray(value).tobytes())
    state = tf_amp.loss_scale_state() if tf.executing_eagerly() else None
    if state is not None and state.good_steps:
        made.update(repr((state.scale, state.good_steps, state.skipped_steps)).encode())
        assert state.skipped_steps, "nothing overflowed, so little is shown"
    return made.hexdigest()


def outcome_of(way: str, folder: pathlib.Path, kill_after: int, keeps: bool) -> str:
    """Run a training in a process of its own; return what it came to, if it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with _exiting():
            begins = "unbroken" in folder.name or bool(kill_after)
            _enable(way, begins)
            if not keeps:
                _forget()
            keras.utils.set_random_seed(1)
            ticks = iter(range(1, EPOCHS * BATCHES + 1))

            def tick() -> None:
                if next(ticks) == kill_after:
                    os.kill(os.getpid(), signal.SIGKILL)

            os.write(writer, WAYS[way](folder, tick).encode())
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed == bool(kill_after), f"{way}: status {status}"
    return text


def _enable(way: str, begins: bool) -> None:
    """Switch on scaling; or pricing, by another device where a training goes on."""
    if way != "priced":
        tf_amp.enable(dtype="float16", opt_level="O2", loss_scale=LOSS_SCALE)
        return
    profile = "cpu-avx512-bf16" if begins else "cpu-generic"
    tf_amp.enable(dtype="bfloat16", device_profile=profile, tune="off")


def _forget() -> None:
    """Let nothing that tf-amp has kept be found."""
    checkpoints.KEY = "renamed"
    checkpoint_record.read_beside = lambda path: ()
    scale_state.PREFIX = "renamed"
    checkpoints._OURS = "renamed/"


@contextlib.contextmanager
def _exiting() -> Iterator[None]:
    try:
        yield
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def main(ways: list[str]) -> None:
    """Train each way: unbroken, killed, resumed."""
    for way in ways:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            unbroken = outcome_of(way, folder / "unbroken", 0, True)
            outcome_of(way, folder / "broken", KILLED_AFTER, True)
            shutil.copytree(folder / "broken", folder / "bare")
            resumed = outcome_of(way, folder / "broken", 0, True)
            bare = outcome_of(way, folder / "bare", 0, False)
        told = ["equal" if run == unbroken else "different" for run in (resumed, bare)]
        print(f"{way}: resumed {told[0]}, resumed without tf-amp's part {told[1]}")


if __name__ == "__main__":
    main(sys.argv[1:])
