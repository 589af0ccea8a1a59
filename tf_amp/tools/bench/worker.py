"""One process of a measurement: run the target under a method, and keep a journal.

Started by `record` with the task as JSON; exits as the target does. Once TensorFlow
and Keras are imported, three things are watched: the batches of Keras' `fit`,
`evaluate` and `predict`; every call of a function in eager mode, of which the first
shows the graph that is executed; and the runs of Sessions.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import importlib
import inspect
import pathlib
import signal
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import wrapt

from tf_amp._tensorflow_private import CREATE_SESSION
from tf_amp._tensorflow_private.functions import (
    CALL_IN_EAGER_MODE,
    definitions,
    executed_graphs,
)
from tf_amp.errors import AmpError, ConfigError
from tf_amp.tools import running_scripts
from tf_amp.tools.bench.job import (
    BATCH_PLACE,
    FUNCTION,
    KERAS,
    SCRIPT,
    TENSORFLOW,
    Task,
    is_ours,
    settings_of_method,
)
from tf_amp.tools.bench.journal import (
    OWN_KIND,
    Journal,
    OpCounts,
    count_ops_of_graphs,
    leaves,
)

KERAS_KINDS = ("train", "test", "predict")
_KERAS = ("keras", "tf_keras")
# Whatever comes next after a loop's last batch.
_ENDS = (
    "on_epoch_end",
    "on_train_end",
    "on_test_begin",
    "on_test_end",
    "on_predict_end",
)

_MOST_LETTERS = 60
_RUN_ARGUMENTS = ("fetches", "feed_dict", "options", "run_metadata")

Method = Callable[..., Any]


def watch(journal: Journal) -> None:
    """Write the steps of this process into a journal, from the imports to come on."""
    calls, batches = _Calls(journal), _Batches(journal)
    wrap, when_imported = wrapt.wrap_function_wrapper, wrapt.register_post_import_hook

    def watch_batches(module: Any) -> None:
        owner = module.callbacks.CallbackList
        for kind in KERAS_KINDS:
            begin = functools.partial(batches.proceed, kind)
            wrap(owner, f"on_{kind}_batch_begin", begin)
            wrap(owner, f"on_{kind}_batch_end", batches.end)
        for name in _ENDS:
            wrap(owner, name, functools.partial(batches.proceed, None))

    called, run = CALL_IN_EAGER_MODE, CREATE_SESSION
    method = f"{called.owner}.{called.method}"
    when_imported(lambda module: wrap(module, method, calls.call), called.module)
    method_of_run = f"{run.owner}.run"
    when_imported(lambda module: wrap(module, method_of_run, calls.run), run.module)
    for name in _KERAS:
        when_imported(watch_batches, name)


class _Calls:
    """Watches the methods that call a function in eager mode, and run a Session."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # By name and options: one function may have several instances. Of runs of a
        # Session, whose fetches are taken for a function, by these.
        self._numbers: dict[tuple[object, object], int] = {}
        self._counts: Counter[tuple[object, object]] = Counter()
        self._is_looking = False

    def call(
        self, method: Method, context: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Stand for the method, whose first argument is the function's name."""
        journal, name = self._journal, args[0].decode()
        key = args[0], context.function_call_options.config_proto_serialized
        timed: list[tuple[Any, float, float]] = []

        def run() -> None:
            begin = journal.now()
            outputs = method(*args, **kwargs)
            timed.append((outputs, begin, journal.now()))

        counts: OpCounts | None = None
        if key in self._numbers or self._is_looking:
            run()
        else:
            self._is_looking = True
            try:
                graphs = executed_graphs(run)
            finally:
                self._is_looking = False
            with journal.looking():
                functions = () if graphs else definitions(context, args[0])
                counts = count_ops_of_graphs(graphs, functions)
        if key not in self._numbers:
            self._numbers[key] = journal.function(name, counts)
        outputs, begin, end = timed[0]
        journal.call(self._numbers[key], begin, end)
        journal.values(name, outputs)
        return outputs

    def run(self, method: Method, session: Any, args: Any, kwargs: Any) -> Any:
        """Stand for the method; its arguments are those of `Session.run`.

        The graph that is executed is asked for at runs 1, 2, 4, 8 and so on, as tf-amp
        may take another one after a while.
        """
        journal = self._journal
        arguments = dict(zip(_RUN_ARGUMENTS, args, strict=False)) | kwargs
        fetches, feed_dict, options, metadata = map(arguments.get, _RUN_ARGUMENTS)
        tensors = (each for each in leaves(fetches) if each is not None)
        names = (str(getattr(t, "name", t)).partition(":")[0] for t in tensors)
        name = ", ".join(names)[:_MOST_LETTERS]
        key = (id(session), name)
        self._counts[key] += 1
        count = self._counts[key]
        is_asked = not count & (count - 1) and options is metadata is None
        if is_asked:
            from tensorflow.core.protobuf import config_pb2

            options = config_pb2.RunOptions(output_partition_graphs=True)
            metadata = config_pb2.RunMetadata()
        begin = journal.now()
        results = method(fetches, feed_dict, options, metadata)
        end = journal.now()
        if is_asked or count == 1:
            with journal.looking():
                # Without metadata it is unknown what is executed.
                graphs = metadata.partition_graphs if is_asked else None
                counts = count_ops_of_graphs(graphs) if graphs else None
                self._numbers[key] = journal.function(name, counts)
        journal.values(name, results)
        journal.call(self._numbers[key], begin, end)
        return results


@dataclasses.dataclass
class _Open:
    """A batch whose successor has not begun; `last` is None until it has ended."""

    kind: str
    first: int
    begin: float
    last: int | None = None


class _Batches:
    """Watches Keras' list of callbacks, by standing for its methods.

    A step lasts from the begin of its batch to that of the next, or to the end of the
    loop, so that reading data counts.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: _Open | None = None

    def proceed(
        self, kind: str | None, method: Method, owner: Any, args: Any, kwargs: Any
    ) -> Any:
        """Stand for what comes after a batch: the begin of one, None: of none."""
        done, self._open = self._open, None
        # A batch that found the data exhausted has no end.
        if done is not None and done.last is not None:
            count = max(done.last - done.first + 1, 1)
            self._journal.step(done.kind, done.begin, self._journal.now(), count)
        if kind is not None:
            self._open = _Open(kind, args[0], self._journal.now())
        return method(*args, **kwargs)

    def end(self, method: Method, owner: Any, args: Any, kwargs: Any) -> Any:
        """Stand for the end of a batch, which has computed a loss or predictions."""
        if (batch := self._open) is not None:
            batch.last = args[0]
            logs = kwargs.get("logs", args[1] if len(args) > 1 else None)
            computed = "outputs" if batch.kind == "predict" else "loss"
            if isinstance(logs, dict) and logs.get(computed) is not None:
                self._journal.values(batch.kind, logs[computed])
        return method(*args, **kwargs)


_FEWEST_STEPS = 12
_COMPARED_CALLS = "tf_amp.compare.call_sites"
_MOST_COMPARING_SECONDS = 90.0
_SET_SIGNAL_OF_PARENTS_DEATH = 1
_POLICY = "mixed_bfloat16"
_PASS = "auto_mixed_precision"
_PASS_OF_CPUS = "auto_mixed_precision_onednn_bfloat16"
Step = Callable[[], Any]
_SERVED = "serving_default"
_FORMS = "a callable without arguments, or (model, x[, y]) of Keras"


def main() -> None:
    """Do the task on the command line."""
    # Whatever ends the one that waits for this process ends it, too.
    ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL)
    task = Task.from_json(sys.argv[1])
    job, run = task.job, task.run
    journal = Journal(pathlib.Path(task.journal))
    try:
        watch(journal)
        if task.mebibytes is not None:
            limit_memory(task.mebibytes, journal)
        switch_on(run.method)
        target, batch = job.target, run.batch
        if target.kind == SCRIPT or batch is None:
            size = "" if batch is None else str(batch)
            arguments = [each.replace(BATCH_PLACE, size) for each in target.arguments]
            running_scripts.run_script(target.name, arguments, as_module=False)
            return
        if target.kind != FUNCTION:
            step = step_of_saved_model(target.name, target.signature, batch)
            _run_steps(step, journal, job.step_seconds)
            return
        sys.path.insert(0, str(pathlib.Path.cwd()))
        with running_scripts.raised_by_script():
            step = step_of_function(target.name, batch, job.mode)
            _run_steps(step, journal, job.step_seconds)
    except AmpError as error:
        if error.is_scripts_own:
            raise
        sys.exit(str(error))


def limit_memory(mebibytes: int, journal: Journal) -> None:
    """Leave so much to the tensors of each device, and write what they took in the end.

    For CPUs the environment says so: TensorFlow reads it when it is imported.
    """

    def limit(tensorflow: Any) -> None:
        config = tensorflow.config
        for gpu in config.list_physical_devices("GPU"):
            part = config.LogicalDeviceConfiguration(memory_limit=mebibytes)
            config.set_logical_device_configuration(gpu, [part])

    @atexit.register
    def note() -> None:
        if (tensorflow := sys.modules.get("tensorflow")) is not None:
            get = tensorflow.config.experimental.get_memory_info
            names = [d.name.removeprefix("/device:") for d in _devices(tensorflow)]
            journal.memory(max(get(name)["peak"] for name in names))

    wrapt.register_post_import_hook(limit, "tensorflow")


def _devices(tensorflow: Any) -> list[Any]:
    """Return the GPUs; without any, the CPUs."""
    list_devices = tensorflow.config.list_logical_devices
    return list(list_devices("GPU") or list_devices("CPU"))


def _run_steps(step: Step, journal: Journal, seconds: float) -> None:
    """Call a step once, until tf-amp has compared it, and then for a while.

    What is compared is written as one step, a mean: half of it runs in float32.
    """

    def call() -> None:
        computed = step()
        if "tensorflow" in sys.modules:
            # A step is done that TensorFlow may only have begun.
            sys.modules["tensorflow"].test.experimental.sync_devices()
        journal.values(OWN_KIND, computed)

    def timed_call() -> None:
        begin = journal.now()
        call()
        journal.step(OWN_KIND, begin, journal.now())

    timed_call()
    compared, begin = 0, journal.now()
    # Meanwhile tf-amp runs a function both ways, to see which is faster.
    comparing = sys.modules.get(_COMPARED_CALLS)
    until = begin + _MOST_COMPARING_SECONDS
    while comparing and comparing.is_any_open() and journal.now() < until:
        call()
        compared += 1
    if compared:
        journal.step(OWN_KIND, begin, journal.now(), compared)
    timed, until = 1, journal.now() + seconds
    while timed < _FEWEST_STEPS or journal.now() < until:
        timed_call()
        timed += 1


def switch_on(method: str) -> None:
    """Let the program to come run under a method, as on the command line.

    TensorFlow and Keras are not imported for it: a program may set what they read from
    the environment. What has to be said to them is said as soon as they are imported.
    """
    when_imported = wrapt.register_post_import_hook
    if method == KERAS:

        def set_policy(keras: Any) -> None:
            keras.mixed_precision.set_global_policy(_POLICY)

        for name in _KERAS:
            when_imported(set_policy, name)
    if method == TENSORFLOW:

        def switch_on_builtin_pass(tensorflow: Any) -> None:
            has_gpus = bool(tensorflow.config.list_physical_devices("GPU"))
            option = _PASS if has_gpus else _PASS_OF_CPUS
            tensorflow.config.optimizer.set_experimental_options({option: True})

        when_imported(switch_on_builtin_pass, "tensorflow")
    if is_ours(method):
        running_scripts.switch_on(settings_of_method(method))


def step_of_function(name: str, batch: int, mode: str) -> Step:
    """Return what "module:function" makes of a batch size.

    Args:
      name: of the function, which gets the batch size, and the mode if it has a
        parameter of that name; it returns a callable that does a step, or a Keras
        model with data of at least as many examples.
      batch: examples per step.
      mode: "train" or "infer".

    Raises:
      ConfigError: there is no such function, or it returns something else.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigError(f"{name}: there is no module {error.name}.") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{name}: {module.__file__} has no such function.")
    takes_mode = "mode" in inspect.signature(function).parameters
    result = function(batch, mode=mode) if takes_mode else function(batch)
    if isinstance(result, tuple) and 2 <= len(result) <= 3:
        return _step_of_keras(name, result, batch, mode)
    if callable(result):
        return result  # type: ignore[no-any-return]
    raise ConfigError(f"{name} returned {type(result).__name__}; wanted is {_FORMS}.")


def _step_of_keras(name: str, result: tuple[Any, ...], batch: int, mode: str) -> Step:
    import tensorflow as tf

    model, *data = result
    if not hasattr(model, "train_on_batch"):
        kind = type(model).__name__
        raise ConfigError(f"{name} returned a tuple with {kind}; wanted is {_FORMS}.")
    for leaf in tf.nest.flatten(data):
        if len(leaf) < batch:
            raise ConfigError(f"{name} returned {len(leaf)} examples for {batch}.")
    x, *y = tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf[:batch]), data)
    if mode == "infer":
        return lambda: model.predict_on_batch(x)
    if not y:
        raise ConfigError(f"{name} returned no y, which training needs; --mode infer?")
    return lambda: model.train_on_batch(x, y[0])


def step_of_saved_model(folder: str, signature: str | None, batch: int) -> Step:
    """Return a call of a signature on a synthetic batch.

    ConfigError: it takes none.
    """
    import tensorflow as tf

    from tf_amp.run import batches

    functions = batches.signatures_of(pathlib.Path(folder), signature)
    if len(functions) > 1 and _SERVED not in functions:
        listed = ", ".join(functions)
        raise ConfigError(f"{folder} has several signatures; --signature {listed}?")
    function = functions.get(_SERVED) or next(iter(functions.values()))
    specs = batches.specs_of(function)
    for spec in specs:
        first = spec.shape[0] if spec.shape.rank else None
        if first not in (None, batch):
            raise ConfigError(
                f"Input {batches.described(spec)} has a batch size of its own; wanted "
                f"is --batches {first}."
            )
    inputs = {
        spec.name: tf.constant(batches.made_up(spec, batch), spec.dtype)
        for spec in specs
    }
    return lambda: function(**inputs)
