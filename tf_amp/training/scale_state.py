"""The states of loss scales: their variables, made when they are first needed.

There is one state per loss scale, strategy and graph; functions share the one outside
of all functions. Without a strategy it lives where most of the variables do that
gradients were first taken of, as an optimizer's slots do.

In a `tf.Graph` the variables are global ones, which a `Saver` saves and an initializer
initializes; what has not been initialized reads as the state to begin with.
`checkpoint_record` says what that is where a checkpoint was restored.

They belong to the worker whose losses are scaled. A worker that overflows lowers its
own scale and skips its own step; it neither waits for the others nor makes them wait.
So nothing of it may lie with parameter servers. Of a ParameterServerStrategy one
function is traced for all workers: it knows a variable by its name, which every worker
looks up among its own; nothing is captured. A worker that has not written it yet, or
has been started again, has none.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import numbers
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.annotations import LOSS_SCALE
from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private import functions as private
from tf_amp._tensorflow_private import unconverted
from tf_amp._tensorflow_private.tracing import (
    handle_contents,
    kept_with,
    put_attribute,
)
from tf_amp._tensorflow_private.training import can_merge, in_function
from tf_amp.config import workers
from tf_amp.config.loss_scales.protocol import COUNTERS, LossScale, State, first_state
from tf_amp.errors import ConfigError
from tf_amp.tracing.stack import taking_all
from tf_amp.training import checkpoint_record
from tf_amp.training.checkpoint_record import Handles, Values, kind_of

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
        self.is_per_worker = not self.in_graph and isinstance(
            strategy, tf.distribute.experimental.ParameterServerStrategy
        )
        self.strategy = strategy
        self._reading: Vectors | None = None
        fresh = {**COUNTERS, **first_state(loss_scale)}
        initial = checkpoint_record.resumed(loss_scale, fresh, weights) or fresh
        self.weights: Any = weakref.WeakValueDictionary()
        self._shapes: set[Any] = set()
        self.add_weights(weights)
        self.fresh = fresh
        self.names = {
            kind: tuple(
                name
                for name, value in fresh.items()
                if isinstance(value, numbers.Integral) == (kind == "counters")
            )
            for kind in _DTYPES
        }
        self._initial = self._packed(initial)
        self.variables_by_kind = {kind: self._make(kind) for kind in self._initial}
        self._are_initialized = {
            kind: self._local(kind).is_initialized()
            for kind in self.variables_by_kind
            if self.in_graph
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
        vectors = {}
        for kind, initial in self._initial.items():
            variable = self._local(kind)
            vectors[kind] = tf.cond(
                variable.is_initialized(),
                functools.partial(_read, variable),
                functools.partial(tf.constant, initial),
            )
        return vectors

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
        """Return whether it has scaled gradients of weights that are gone."""
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
        if self.is_per_worker:
            per_worker = on_each_worker(self.read) or [self.read()]
            # What suits all of them is the lowest scale.
            place = self.names["floats"].index("scale")
            lowest = min(per_worker, key=lambda v: float(v["floats"][place]))
            return self.values_in(lowest)
        if not self.in_graph:
            return self.values_in(self.snapshot())
        session = session or tf.compat.v1.get_default_session()
        if session is None:
            raise ConfigError(
                "The loss scale lives in a tf.Graph: pass the Session that trains it, "
                "loss_scale_state(session=...), or ask within `with session:`."
            )
        with session.graph.as_default():
            reading = self.read()
        return self.values_in(session.run(dict(reading)))

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

    def initialize_missing(self, session: Any) -> None:
        """Initialize what the program's own initializers have left out."""
        for kind, is_initialized in session.run(self._are_initialized).items():
            if not is_initialized:
                session.run(self._local(kind).initializer)

    def packed_by_name(self, values: Values) -> dict[str, Any]:
        """Return by the name of each variable the vector that holds its values."""
        packed = self._packed(values)
        return {self._local(kind).op.name: vector for kind, vector in packed.items()}

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
        # The global ones of a job are initialized and saved by its chief, which knows
        # nothing of those that other workers have for themselves.
        keys = tf.compat.v1.GraphKeys
        is_global = place_here() is None
        collection = keys.GLOBAL_VARIABLES if is_global else keys.LOCAL_VARIABLES
        # Whatever scope gradients are taken in: a Saver knows it by name.
        with tf.compat.v1.name_scope(None):
            return tf.compat.v1.Variable(
                self._initial[kind],
                trainable=False,
                name=name,
                collections=[PREFIX, collection],
                use_resource=True,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def _local(self, kind: str) -> Any:
        """Return a variable, of several replicas that of the first here."""
        variable = self.variables_by_kind[kind]
        return self.strategy.experimental_local_results(variable)[0]


def _done(operation: Any) -> Any:
    with tf.control_dependencies([operation]):
        return tf.constant(True)


def _read(variable: Any) -> Any:
    """Return a variable's value, which stays float32 as far as the first products."""
    value = variable.read_value()
    mark(value, LOSS_SCALE)
    # The read itself remains where the optimizer of graphs removes what passes it on.
    for source in () if hasattr(value, "numpy") else value.op.inputs:
        if source.op.type == "ReadVariableOp":
            mark(source, LOSS_SCALE)
    return value


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


def mark(tensor: Any, name: str) -> None:
    """Put an attribute on what makes a tensor; under eager execution there is none."""
    if isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy"):
        put_attribute(tensor.op, name, b=True)


_STATES = "_tf_amp_loss_scale_states"
_lock = renewed_lock()

# By identity of loss scale and strategy, which a state keeps alive.
_States = dict[tuple[int, int], ScaleState]
_eager_states: _States = {}
# A graph dies with whoever made it, and its states with it.
_latest: list[weakref.ref[ScaleState]] = []


def state_of(loss_scale: LossScale, sources: Any = ()) -> ScaleState:
    """Return the state of a loss scale here, made if there is none yet.

    Args:
      loss_scale: the specification.
      sources: nest of what gradients are taken of, variables among it; where there are
        none, a new state lives on the device in whose scope this is called.

    Raises:
      CheckpointMismatchError: with these weights another loss scale was saved.
    """
    strategy = tf.distribute.get_strategy()
    key = (id(loss_scale), id(strategy))
    weights = handles_of(tf.nest.flatten(sources))
    if key not in _home():
        make = functools.partial(_make, loss_scale, strategy, weights)
        in_replica = not tf.distribute.in_cross_replica_context()
        # Where replicas cannot meet, `make` does its work in a thread that is of none.
        if tf.distribute.has_strategy() and in_replica and can_merge():
            context = tf.distribute.get_replica_context()
            context.merge_call(lambda strategy: make())
        else:
            make()
    state = _home()[key]
    _latest[:] = [weakref.ref(state)]
    new = {key: handle for key, handle in weights.items() if key not in state.weights}
    # In a `tf.Graph` nothing can be written without a Session.
    if new and not state.in_graph:
        values = checkpoint_record.resumed(
            state.loss_scale, state.fresh, new, has_state=True
        )
        if values is not None:
            made_outside(functools.partial(state.replace, values))
    state.add_weights(new)
    return state


def _make(loss_scale: LossScale, strategy: Any, weights: Handles) -> None:
    """Make a state where the variables of all replicas can be made."""
    key = (id(loss_scale), id(strategy))
    has_strategy, device = tf.distribute.has_strategy(), place_here()
    is_tracing = not tf.executing_eagerly()

    def make() -> ScaleState:
        with contextlib.ExitStack() as scopes:
            if has_strategy:
                scopes.enter_context(strategy.scope())
            else:
                scopes.enter_context(tf.device(None))
                scopes.enter_context(tf.device(device))
            return ScaleState(loss_scale, strategy, weights)

    with _lock, tf.init_scope():
        if key in _home():
            return
        is_eager = tf.executing_eagerly()
        if is_eager and not has_strategy:
            # Where most of the variables are; else in the scope that is in force here,
            # as a thread of its own is in no scope.
            devices = [h.device for h in weights.values() if h.device]
            device = collections.Counter(
                devices or [str(tf.identity(0.0).device)]
            ).most_common(1)[0][0]
        _home()[key] = made_outside(make) if is_tracing and is_eager else make()


def _home() -> _States:
    """Return where the states of the outermost graph, or of eager execution, are."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return _eager_states
        graph = tf.compat.v1.get_default_graph()
    states: _States = kept_with(graph, _STATES)
    return states


def find_state(loss_scale: LossScale) -> ScaleState | None:
    """Return the state of a loss scale that gradients computed here use, if any.

    That is the one of the present strategy; where it has none, the one made last.
    """
    states = [state for state in states_here() if state.loss_scale is loss_scale]
    strategy = tf.distribute.get_strategy()
    of_strategy = [state for state in states if state.strategy is strategy]
    return next(reversed(of_strategy or states), None)


def states_here() -> list[ScaleState]:
    """Return all states that gradients computed here may have changed."""
    if private.is_exporting():
        return []
    with _lock:
        return list(_home().values())


def states_in_use() -> list[ScaleState]:
    """Return those of them whose weights are still there.

    A process may train one model after another, each with a loss scale of its own.
    """
    return [state for state in states_here() if not state.is_abandoned]


def eager_states() -> list[ScaleState]:
    """Return all states outside of graphs, which functions share."""
    with _lock:
        return list(_eager_states.values())


def states_of(graph: Any) -> list[ScaleState]:
    """Return all states in a `tf.Graph`."""
    states: _States = getattr(graph, _STATES, {})
    return list(states.values())


def latest_state() -> ScaleState | None:
    """Return the state that gradients were last scaled by, when they were traced."""
    return _latest[0]() if _latest else None


def handles_of(values: Iterable[Any]) -> Handles:
    """Return the handles of the variables among some values; others have none.

    A variable is known by its handle, of several replicas by those of all of them,
    whether TensorFlow or Keras made the object around it.
    """
    parts: list[Any] = []
    for value in values:
        # Keras 3 wraps a variable of TensorFlow's, whose own `value` is a method.
        inner = getattr(value, "value", None)
        variable = value if inner is None or callable(inner) else inner
        is_of_replicas = isinstance(variable, tf.distribute.DistributedValues)
        parts += variable.values if is_of_replicas else (variable,)
    handles = (getattr(part, "handle", None) for part in parts)
    return {id(handle): handle for handle in handles if handle is not None}


def shape_of(handle: Any) -> tuple[int, ...] | None:
    """Return the shape of the variable behind a handle or reference, if known."""
    shape = handle.shape
    if handle.dtype == tf.resource:
        contents = handle_contents(handle)
        shape = tf.TensorShape(contents[0].shape if contents else None)
    return tuple(shape.as_list()) if shape.is_fully_defined() else None
