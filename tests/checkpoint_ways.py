"""Trainings that save in every way there is, and restore in each.

They use nothing but what TensorFlow, Keras and tf-amp offer to users, so that they run
without tf-amp as well. A method that restores is the first thing its process does.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp import LossScaleState, loss_scale_state

v1 = tf.compat.v1

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
BAD = X * np.float32(np.inf)
Y = X[:, :1]
GOOD_STEPS = 3


class Model(tf.Module):
    """A product, its optimizer and a step."""

    def __init__(self, optimizer: Any = None) -> None:
        """Make the weights."""
        super().__init__()
        self.weight = tf.Variable(tf.ones((4, 1)))
        self.optimizer = optimizer
        if optimizer is not None:
            optimizer.build([self.weight])

    @tf.function
    def step(self, x: Any) -> Any:
        """Take one step."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ self.weight) ** 2)
        gradient = tape.gradient(loss, self.weight)
        if self.optimizer is None:
            self.weight.assign_sub(0.1 * gradient)
        else:
            self.optimizer.apply_gradients([(gradient, self.weight)])
        return loss


def compiled(library: Any, *, is_built: bool = True) -> Any:
    """Return a model of Keras, with all variables of its optimizer or without."""
    layers = library.layers
    model = library.Sequential([layers.Dense(2), layers.Dense(1)])
    model.build((None, 4))
    model.compile(library.optimizers.Adam(0.01), "mse")
    if is_built:
        # Keras restores none that is yet to be made.
        model.optimizer.build(model.trainable_variables)
    return model


def slots_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer of Keras."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class Loop:
    """A training by hand, saved by `tf.train.Checkpoint`."""

    library = "keras"

    def __init__(self, folder: pathlib.Path) -> None:
        """Make what is trained; files are in the folder."""
        optimizers = importlib.import_module(self.library).optimizers
        self.model = Model(optimizers.Adam(0.01))
        self.folder = folder
        self.checkpoint = tf.train.Checkpoint(
            weight=self.model.weight, optimizer=self.model.optimizer
        )
        self.manager = tf.train.CheckpointManager(
            self.checkpoint, str(folder / "managed"), max_to_keep=2
        )

    def train(self, x: np.ndarray) -> None:
        """Take a step."""
        self.model.step(x)

    def state(self) -> LossScaleState:
        """Return the state of the loss scale."""
        return loss_scale_state()

    def values(self) -> list[np.ndarray]:
        """Return weights, slots and iteration."""
        return [np.array(variable) for variable in self._variables()]

    def train_and_save(self, overflows: int) -> None:
        """Take steps that overflow, and good ones; write all files."""
        untrained = tf.train.Checkpoint(weight=self.model.weight)
        untrained.save(str(self.folder / "twice" / "untrained"))
        for x in [BAD] * overflows + [X] * GOOD_STEPS:
            self.train(x)
        for prefix in ("written", "beside", "twice"):
            self.checkpoint.write(str(self.folder / prefix))
        (self.folder / "beside").mkdir()
        self.checkpoint.save(str(self.folder / "saved"))
        self.manager.save()
        listed = tf.train.Checkpoint(variables=self._variables())
        listed.write(str(self.folder / "listed"))

    def restore(self) -> None:
        self.checkpoint.restore(self.folder / "saved-1").assert_consumed()

    def read(self, prefix: str = "written") -> None:
        self.checkpoint.read(str(self.folder / prefix)).assert_consumed()

    def restore_latest(self) -> None:
        latest = self.manager.latest_checkpoint
        self.checkpoint.restore(latest).assert_consumed()

    def restore_or_initialize(self) -> None:
        assert self.manager.restore_or_initialize()

    def assign(self) -> None:
        """Set each variable to what a reader of the file returns."""
        reader = tf.train.load_checkpoint(str(self.folder / "listed"))
        for number, variable in enumerate(self._variables()):
            key = f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE"
            variable.assign(reader.get_tensor(key))

    def _variables(self) -> list[Any]:
        return [self.model.weight, *slots_of(self.model.optimizer)]


class LoopOfTfKeras(Loop):
    """The same with an optimizer of tf_keras."""

    library = "tf_keras"


class Fitted:
    """A model of Keras, saved by its own methods and callbacks."""

    library = "keras"

    def __init__(self, folder: pathlib.Path) -> None:
        """Make nothing yet; files are in the folder."""
        self.folder = folder
        self.keras = importlib.import_module(self.library)
        self.model: Any = None

    def train(self, x: np.ndarray) -> None:
        """Take a step."""
        self.model.train_on_batch(x, Y)

    def state(self) -> LossScaleState:
        """Return the state of the loss scale."""
        return loss_scale_state()

    def values(self) -> list[np.ndarray]:
        """Return weights, slots and iteration."""
        variables = [*self.model.weights, *slots_of(self.model.optimizer)]
        return [np.array(variable) for variable in variables]

    def train_and_save(self, overflows: int) -> None:
        """Take steps that overflow, and good ones; write all files."""
        self.build()
        for _ in range(overflows):
            self.train(BAD)
        best = str(self.folder / "best.keras")
        self.fit(self._backup(), self.keras.callbacks.ModelCheckpoint(best))
        self.save()

    def build(self) -> None:
        self.model = compiled(self.keras)

    def fit(self, *callbacks: Any) -> None:
        """Take one step per epoch."""
        arguments = {"batch_size": len(X), "shuffle": False, "verbose": 0}
        self.model.fit(X, Y, epochs=GOOD_STEPS, callbacks=list(callbacks), **arguments)

    def save(self) -> None:
        """Write the files that no callback has written."""
        self.model.save_weights(str(self.folder / "m.weights.h5"))
        self.model.save(str(self.folder / "m.keras"))

    def load_weights(self, name: str) -> None:
        self.build()
        self.model.load_weights(str(self.folder / name))

    def load_model(self, name: str) -> None:
        self.model = self.keras.models.load_model(str(self.folder / name))

    def go_on(self) -> None:
        """Have `fit` restore, which has no epoch left to train."""
        self.build()
        self.fit(self._backup())

    def _backup(self) -> Any:
        return self.keras.callbacks.BackupAndRestore(
            str(self.folder / "backup"), delete_checkpoint=False
        )


class FittedByTfKeras(Fitted):
    """A model of tf_keras."""

    library = "tf_keras"

    def save(self) -> None:
        """Write the files of tf_keras' own formats, too."""
        super().save()
        self.model.save(str(self.folder / "m.h5"))
        self.model.save_weights(str(self.folder / "named"))


class FittedInFolder(FittedByTfKeras):
    """A model of tf_keras in a SavedModel, from which it restores no slots."""

    def save(self) -> None:
        """Write nothing else."""
        self.model.save(str(self.folder / "model"))

    def values(self) -> list[np.ndarray]:
        """Return weights alone."""
        return [np.array(variable) for variable in self.model.weights]


class InSession:
    """A training in a `tf.Graph`, saved by a Saver."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Make the graph, in which the process stays."""
        self.folder = folder
        self._entered = contextlib.ExitStack()
        self._entered.enter_context(tf.Graph().as_default())
        self.x = v1.placeholder(tf.float32, (None, 4))
        weight = v1.get_variable("w", (4, 1), use_resource=True)
        step = v1.train.get_or_create_global_step()
        optimizer = v1.train.AdamOptimizer(0.01)
        loss = tf.reduce_mean((self.x @ weight) ** 2)
        self.update = optimizer.minimize(loss, global_step=step)
        self.variables = [weight, step, *optimizer.variables()]
        self.saver = v1.train.Saver()
        self.session: Any = None

    def train(self, x: np.ndarray) -> None:
        """Take a step."""
        self.session.run(self.update, {self.x: x})

    def state(self) -> LossScaleState:
        """Return the state of the loss scale."""
        return loss_scale_state(session=self.session)

    def values(self) -> list[np.ndarray]:
        """Return weights, slots and steps."""
        values: list[np.ndarray] = self.session.run(self.variables)
        return values

    def train_and_save(self, overflows: int) -> None:
        """Take steps that overflow, and good ones; write a checkpoint."""
        self._begin()
        (self.folder / "twice").mkdir()
        untrained = v1.train.Saver(self.variables[:1])
        untrained.save(self.session, str(self.folder / "twice" / "untrained"))
        for x in [BAD] * overflows + [X] * GOOD_STEPS:
            self.train(x)
        for name in ("twice", "model"):
            self.saver.save(self.session, str(self.folder / name))

    def restore(self, name: str = "model") -> None:
        self._enter(v1.Session())
        self.saver.restore(self.session, str(self.folder / name))

    def initialize(self) -> None:
        """Have the variables' initializers read the file."""
        by_name = {variable.op.name: variable for variable in self.variables}
        v1.train.init_from_checkpoint(str(self.folder / "model"), by_name)
        self._begin()

    def monitored(self) -> None:
        made = v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(self.folder),
            save_checkpoint_secs=None,
            log_step_count_steps=0,
        )
        self._enter(made)

    def _begin(self) -> None:
        self._enter(v1.Session())
        self.session.run(v1.global_variables_initializer())

    def _enter(self, session: Any) -> None:
        self.session = self._entered.enter_context(session)


# What trains, and how its method is called that restores.
WAYS = {
    "Checkpoint.restore": (Loop, "restore()"),
    "Checkpoint.read": (Loop, "read()"),
    "Checkpoint.read beside a folder": (Loop, "read('beside')"),
    "Checkpoint.read beside others": (Loop, "read('twice')"),
    "CheckpointManager": (Loop, "restore_latest()"),
    "restore_or_initialize": (Loop, "restore_or_initialize()"),
    "Checkpoint of tf_keras' optimizer": (LoopOfTfKeras, "restore()"),
    "load_checkpoint": (Loop, "assign()"),
    "load_weights": (Fitted, "load_weights('m.weights.h5')"),
    "load_model": (Fitted, "load_model('m.keras')"),
    "ModelCheckpoint": (Fitted, "load_model('best.keras')"),
    "BackupAndRestore": (Fitted, "go_on()"),
    "tf_keras load_weights": (FittedByTfKeras, "load_weights('m.weights.h5')"),
    "tf_keras load_weights, TensorFlow's": (FittedByTfKeras, "load_weights('named')"),
    "tf_keras load_model": (FittedByTfKeras, "load_model('m.keras')"),
    "tf_keras load_model, h5": (FittedByTfKeras, "load_model('m.h5')"),
    "tf_keras load_model, folder": (FittedInFolder, "load_model('model')"),
    "tf_keras ModelCheckpoint": (FittedByTfKeras, "load_model('best.keras')"),
    "tf_keras BackupAndRestore": (FittedByTfKeras, "go_on()"),
    "Saver": (InSession, "restore()"),
    "Saver beside others": (InSession, "restore('twice')"),
    "MonitoredTrainingSession": (InSession, "monitored()"),
    "init_from_checkpoint": (InSession, "initialize()"),
}
