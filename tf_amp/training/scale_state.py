"""The state of one loss scale: its variables, and how they are read and written.

In a `tf.Graph` the variables are global ones, which a `Saver` saves and an initializer
initializes; what has not been initialized reads as the state to begin with.
`restored_scales` says what that is where a checkpoint was restored.

They belong to the worker whose losses are scaled. A worker that overflows lowers its
own scale and skips its own step; it neither waits for the others nor makes them wait.
So nothing of it may lie with parameter servers. Of a ParameterServerStrategy one
function is traced for all workers: it knows a variable by its name, which every worker
looks up among its own; nothing is captured. A worker that has not written it yet, or
has been started again, has none.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import numbers
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.annotations import AGAIN, BARRIER, LOSS_SCALE, SCALE, SCALE_UPDATE
from grappler_pass.rewriting.second_try import Counters
from tf_amp._tensorflow_private import unconverted
from tf_amp._tensorflow_private import workers as private
from tf_amp._tensorflow_private.tracing import attribute_of, put_attribute
from tf_amp._tensorflow_private.training import in_function
from tf_amp.config import workers
from tf_amp.config.loss_scales.protocol import COUNTERS, LossScale, State, first_state
from tf_amp.errors import ConfigError
from tf_amp.tracing.bypass import taking_all
from tf_amp.training import restored_scales
from tf_amp.training.restored_scales import Values, kind_of
from tf_amp.training.weights import Handles, shape_of

# In a `tf.Graph`, the first part of the variables' names, and their collection.
PREFIX = "tf_amp_loss_scale"

# Vectors of values by kind, as read.
Vectors = Mapping[str, Any]
_DTYPES: Mapping[str, Any] = {"floats": np.float32, "counters": np.int64}


class ScaleState:
    """The variables of one loss scale in one graph under one strategy.

    The values are packed by type, so that a step reads and writes two variables at
    most, however many values there are.

    Attributes:
      loss_scale: the specification.
      in_graph: whether the variables belong to a `tf.Graph`, not to eager execution.
      is_per_worker: whether each worker has them for itself.
      strategy: that the variables were made under.
      weights: that it has scaled gradients of, as far as they are alive.
      fresh: the values that a new training begins with.
      names: of the values in each variable, in its order.
      variables_by_kind: "floats", a float32 vector, and "counters", an int64 one.
    """

    def __init__(self, loss_scale: LossScale, strategy: Any, weights: Handles) -> None:
        """Make the variables; called in the default or a cross-replica context.

        Raises:
          CheckpointMismatchError: with these weights another loss scale was saved.
          ConfigError: the loss scale begins without a scale.
        """
        self.loss_scale = loss_scale
        self.in_graph = not tf.executing_eagerly()
        self.is_per_worker = not self.in_graph and is_parameter_server(strategy)
        self.strategy = strategy
        self._reading: Vectors | None = None
        fresh = {**COUNTERS, **first_state(loss_scale)}
        initial = restored_scales.resumed(loss_scale, fresh, weights)
        self.weights: Any = weakref.WeakValueDictionary()
        self._shapes: set[Any] = set()
        self.add_weights(weights)
        self.fresh = fresh
        self.names = {
            kind: tuple(n for n, value in fresh.items() if _kind_of(value) == kind)
            for kind in _DTYPES
        }
        self._initial = self._packed(initial)
        self.variables_by_kind = {kind: self._make(kind) for kind in self._initial}
        self._are_initialized: dict[str, Any] = {}
        if self.in_graph:
            self._are_initialized = {
                kind: self._local(kind).is_initialized()
                for kind in self.variables_by_kind
            }

    def read(self) -> Vectors:
        """Return the vectors of values as they are now, on this replica.

        In a `tf.Graph` they are read once for all, so that all towers of a step are
        scaled alike.
        """
        if not self.in_graph or in_function():
            return self.read_anew()
        if self._reading is None:
            with tf.init_scope():
                self._reading = self.read_anew()
        return self._reading

    def initial(self) -> Vectors:
        """Return the vectors as they were to begin with."""
        return {kind: tf.constant(vector) for kind, vector in self._initial.items()}

    def read_anew(self) -> Vectors:
        """Return the vectors as they are when this runs."""
        if not self.in_graph:
            return {k: _read(v) for k, v in self.variables_by_kind.items()}
        return {kind: self._value_or_initial(kind) for kind in self.variables_by_kind}

    def has_overflowed(self) -> Any:
        """Return whether any gradients have, since the training began; bool scalar."""
        return self._is_not_zero("skipped_steps")

    def is_finite(self) -> Any:
        """Return whether the latest gradients were, bool scalar."""
        return self._is_not_zero("finite")

    def _is_not_zero(self, counter: str) -> Any:
        place = self.names["counters"].index(counter)
        return tf.not_equal(self.read()["counters"][place], 0)

    def add_weights(self, weights: Handles) -> None:
        """Remember weights that it scales gradients of."""
        self.weights.update(weights)
        self._shapes.update(map(shape_of, weights.values()))

    def has_trained(self, weights: Handles) -> bool:
        """Return whether it has scaled gradients of some of these weights."""
        return not weights.keys().isdisjoint(self.weights)

    @property
    def is_abandoned(self) -> bool:
        """Whether it has scaled gradients of weights that are no more."""
        return bool(self._shapes) and not self.weights

    def suits(self, handle: Any) -> bool:
        """Return whether a variable may be a weight, or what an optimizer has for one.

        It is where it has the shape of a weight. Scalars are too many things.
        """
        shape = shape_of(handle)
        if shape == ():
            return id(handle) in self.weights
        return shape is not None and shape in self._shapes

    def alone(self, update: Callable[[], Any]) -> Any:
        """Return a result once nothing else in a `tf.Graph` adjusts the state.

        A Session runs the steps of several losses at once, of which none may undo what
        the other has written.
        """
        name = self._local("counters").op.name
        with tf.device("/device:CPU:0"):
            mutex = tf.raw_ops.MutexV2(shared_name=name, name="loss_scale_mutex")
            lock = tf.raw_ops.MutexLock(mutex=mutex, name="loss_scale_lock")
        with tf.control_dependencies([lock]):
            result = update()
        with tf.control_dependencies([result]):
            release = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([release]):
            return tf.identity(result)

    def unpacked(self, vectors: Vectors) -> State:
        """Return the values in vectors that were read, scalar tensors by name."""
        values: dict[str, Any] = {}
        for kind, vector in vectors.items():
            values.update(zip(self.names[kind], tf.unstack(vector), strict=True))
        return values

    def write(self, values: Mapping[str, Any], before: State) -> list[Any]:
        """Assign new values; return the operations that do, where there are any.

        Args:
          values: what changes.
          before: all values as they were.
        """
        assigned = []
        for kind, variable in self.variables_by_kind.items():
            names = self.names[kind]
            if values.keys().isdisjoint(names):
                continue
            parts = [values.get(name, before[name]) for name in names]
            packed = tf.stack([tf.cast(part, variable.dtype) for part in parts])
            assigned.append(variable.assign(packed, read_value=False))
        return assigned

    def count_step(self) -> Any:
        """Add one to the finite steps; return the operation that does, if any."""
        variable = self.variables_by_kind["counters"]
        one = [int(name == "good_steps") for name in self.names["counters"]]
        step = tf.constant(one, variable.dtype)
        if not self.in_graph:
            return variable.assign_add(step, read_value=False)
        # Nobody may have initialized it.
        return tf.cond(
            self._local("counters").is_initialized(),
            lambda: _done(variable.assign_add(step, read_value=False)),
            lambda: _done(
                variable.assign(self._initial["counters"] + step, read_value=False)
            ),
        )

    def evaluate(self, session: Any = None) -> dict[str, float | int]:
        """Return all values as they are now, for Python.

        Args:
          session: for a state in a `tf.Graph`; by default the one in force.

        Raises:
          ConfigError: there is no Session.
        """
        return self.values_in(self._evaluate_vectors(session))

    def snapshot(self) -> Vectors:
        """Return the vectors as they are now, outside of graphs; waits for nothing."""
        return {kind: self._local(kind).value() for kind in self.variables_by_kind}

    def values_in(self, vectors: Vectors) -> dict[str, float | int]:
        """Return for Python the values in arrays, or in eager tensors as read."""
        values: dict[str, float | int] = {}
        for kind, vector in vectors.items():
            numbers_of_kind = np.asarray(vector).tolist()
            values.update(zip(self.names[kind], numbers_of_kind, strict=True))
        return values

    def replace(self, values: Values, session: Any = None) -> None:
        """Set all values; `session` is for a state in a `tf.Graph`."""
        for kind, vector in self._packed(values).items():
            variable = self.variables_by_kind[kind]
            if self.is_per_worker:
                on_each_worker(functools.partial(variable.assign, vector))
                continue
            if not self.in_graph:
                variable.assign(vector)
                continue
            session = session or tf.compat.v1.get_default_session()
            # Feeding initializers adds nothing to a graph that may be finalized.
            for local in self.strategy.experimental_local_results(variable):
                initializer = local.initializer
                session.run(initializer, {initializer.inputs[1]: vector})

    def _evaluate_vectors(self, session: Any) -> Mapping[str, Any]:
        if self.is_per_worker:
            found = on_each_worker(self.read) or [self.read()]
            # What suits all of them is the lowest scale.
            place = self.names["floats"].index("scale")
            return min(found, key=lambda vectors: float(vectors["floats"][place]))
        if not self.in_graph:
            return {k: self._local(k).numpy() for k in self.variables_by_kind}
        session = session or tf.compat.v1.get_default_session()
        if session is None:
            raise ConfigError(
                "The loss scale lives in a tf.Graph: pass the Session that trains it, "
                "loss_scale_state(session=...), or ask within `with session:`."
            )
        with session.graph.as_default():
            reading = self.read()
        vectors: Mapping[str, Any] = session.run(dict(reading))
        return vectors

    def initialize_missing(self, session: Any) -> None:
        """Initialize what the program's own initializers have left out."""
        for kind, is_initialized in session.run(self._are_initialized).items():
            if not is_initialized:
                session.run(self._local(kind).initializer)

    def fresh_by_name(self) -> dict[str, Any]:
        """Return by the name of each variable what a new training begins with."""
        packed = self._packed(self.fresh)
        return {self._local(kind).op.name: vector for kind, vector in packed.items()}

    def scale_among(self, vectors: Mapping[str, Any]) -> float | None:
        """Return the scale in what a checkpoint holds, if it has this state's.

        Args:
          vectors: arrays by the names of variables.
        """
        vector = vectors.get(self._local("floats").op.name)
        names = self.names["floats"]
        if vector is None or np.shape(vector) != (len(names),):
            return None
        return float(vector[names.index("scale")])

    def _packed(self, values: Values) -> dict[str, Any]:
        return {
            kind: np.array([values[n] for n in names], _DTYPES[kind])
            for kind, names in self.names.items()
            if names
        }

    def _make(self, kind: str) -> Any:
        name = f"{PREFIX}/{kind_of(self.loss_scale)}/{kind}"
        if self.is_per_worker:
            return WorkerVariable(self._initial[kind], name)
        # Whatever scope gradients are taken in: a Saver goes by the name.
        with tf.compat.v1.name_scope(None):
            return tf.compat.v1.Variable(
                self._initial[kind],
                trainable=False,
                name=name,
                collections=[PREFIX, collection_here()],
                use_resource=True,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def _local(self, kind: str) -> Any:
        """Return a variable, of several replicas that of the first here."""
        variable = self.variables_by_kind[kind]
        return self.strategy.experimental_local_results(variable)[0]

    def _value_or_initial(self, kind: str) -> Any:
        variable, initial = self._local(kind), self._initial[kind]
        return tf.cond(
            variable.is_initialized(),
            lambda: _read(variable),
            lambda: tf.constant(initial),
        )


def _done(operation: Any) -> Any:
    with tf.control_dependencies([operation]):
        return tf.constant(True)


def _read(variable: Any) -> Any:
    return mark_reading(variable.read_value())


def _kind_of(value: float | int) -> str:
    return "counters" if isinstance(value, numbers.Integral) else "floats"


def is_parameter_server(strategy: Any) -> bool:
    """Return whether the workers of a strategy train independently of each other."""
    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def place_here() -> str | None:
    """Return the task that computes what is made here, "" or None for any.

    In a `tf.Graph` that a `replica_device_setter` lays out, computations are placed
    with the worker, and variables elsewhere.
    """
    device = _device_here()
    if device.job is None:
        return None
    task = tf.DeviceSpec(job=device.job, replica=device.replica, task=device.task)
    return str(task.to_string())


def runs_here() -> bool:
    """Return whether what is traced here runs in this process, as far as is known."""
    if workers.directed_key():
        return False
    device = _device_here()
    # Replicas of a strategy within this process are placed on its "localhost".
    is_ours = device.job in (None, "localhost")
    return is_ours or workers.is_own_task(device.job, device.task or 0)


def collection_here() -> str:
    """Return the collection in which a worker's variables are initialized.

    The global ones of a job are initialized and saved by its chief, which knows nothing
    of those that other workers have for themselves.
    """
    keys = tf.compat.v1.GraphKeys
    name = keys.GLOBAL_VARIABLES if place_here() is None else keys.LOCAL_VARIABLES
    return str(name)


@unconverted
def made_outside(make: Callable[[], Any]) -> Any:
    """Return what a function makes outside of all functions, replicas and scopes.

    A function that is traced a second time may make no variables, nor may what it calls
    in its thread; nor may the thread of a replica make those of all replicas.
    """

    def make_eagerly() -> Any:
        with tf.init_scope(), taking_all():
            return make()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(make_eagerly).result()


def _device_here() -> Any:
    """Return where a computation made here is placed; of no job while eager."""
    if tf.executing_eagerly():
        return tf.DeviceSpec()
    return tf.DeviceSpec.from_string(tf.no_op().device or "")


# Servers may outlive those that use them.
_process = secrets.token_hex(4)
_numbers = itertools.count(1)


class WorkerVariable:
    """A vector of fixed length.

    Attributes:
      dtype: of its elements.
    """

    def __init__(self, initial: np.ndarray, name: str) -> None:
        """Choose a name; nothing is made yet.

        Args:
          initial: what it reads as where it has not been written.
          name: for people.
        """
        self.dtype = tf.as_dtype(initial.dtype)
        self._initial = initial
        self._name = f"{name}/{_process}/{next(_numbers)}"

    def read_value(self) -> Any:
        """Return its value on the worker that runs this."""
        handle = self._handle()
        initial = self._initial
        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=self.dtype),
            lambda: tf.constant(initial),
        )

    def assign(self, value: Any, read_value: bool = False) -> Any:
        """Write it on the worker that runs this; return the operation, if any."""
        return tf.raw_ops.AssignVariableOp(resource=self._handle(), value=value)

    def assign_add(self, value: Any, read_value: bool = False) -> Any:
        """Add to it on the worker that runs this; return the operation, if any."""
        return self.assign(self.read_value() + value)

    def _handle(self) -> Any:
        with tf.name_scope("tf_amp_loss_scale"):
            return tf.raw_ops.VarHandleOp(
                dtype=self.dtype, shape=self._initial.shape, shared_name=self._name
            )


def on_each_worker(act: Callable[[], Any]) -> list[Any]:
    """Do something eagerly on each worker that this process is connected to.

    Returns:
      What it returned, of those that could be reached.
    """
    cluster = private.connected_cluster()
    jobs = [] if cluster is None else [j for j in cluster.job if j.name == "worker"]
    done = []
    for task in sorted(task for job in jobs for task in job.tasks):
        place = f"/job:worker/replica:0/task:{task}/device:CPU:0"
        with contextlib.suppress(tf.errors.UnavailableError), tf.device(place):
            done.append(act())
    return done


def mark_reading(value: Any) -> Any:
    """Return a state that was read, which stays float32 as far as the first products.

    Args:
      value: vector, as a variable's `read_value` returns it.
    """
    _mark(value, LOSS_SCALE)
    # The read itself remains where the optimizer of graphs removes what passes it on.
    for source in () if hasattr(value, "numpy") else value.op.inputs:
        if source.op.type == "ReadVariableOp":
            _mark(source, LOSS_SCALE)
    return value


def mark_unscaled(gradient: Any) -> None:
    """Let nothing that follows from a gradient in true units go to low precision."""
    _mark(gradient, BARRIER)


def mark_scale(scale: Any, is_unscaled_here: bool) -> None:
    """Mark a scale by whether what it multiplies is divided again in the same graph.

    Once it has not been, it never is.

    Args:
      scale: scalar, unpacked from a state that was read, or that divided by a number.
      is_unscaled_here: whether it is as far as the present call goes.
    """
    if hasattr(scale, "numpy") or scale.op.type not in ("RealDiv", "Unpack"):
        return
    if attribute_of(scale.op, SCALE, 0) >= 0:
        put_attribute(scale.op, SCALE, i=scale.value_index if is_unscaled_here else -1)


def mark_second_try(scale: Any, counters: Sequence[str]) -> None:
    """Let gradients of a scaled loss be taken again without the scale, in this graph.

    Args:
      scale: scalar.
      counters: the names of what the state counts, in the order of its vector.
    """
    places = map(counters.index, ("finite", "skipped_steps"))
    mark = Counters(len(counters), *places).mark(scale.value_index)
    put_attribute(scale.op, AGAIN, s=mark.encode())


def scale_update_scope() -> Any:
    """Name what is made within as what a loss scale is adjusted by."""
    return tf.name_scope(SCALE_UPDATE)


def _mark(tensor: Any, name: str) -> None:
    if isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy"):
        put_attribute(tensor.op, name, b=True)
