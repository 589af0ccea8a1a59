"""One process of a measurement: run the target under a method, and keep a journal.

Started by `measuring` with the task as JSON; exits as the target does.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from tf_amp.errors import AmpError, ConfigError
from tf_amp.tools import running_scripts
from tf_amp.tools.bench.job import BATCH_PLACE, FUNCTION, SCRIPT, Task
from tf_amp.tools.bench.methods import KERAS, TENSORFLOW, is_ours, settings_of_method
from tf_amp.tools.bench.worker import process, watching
from tf_amp.tools.bench.worker.journal import OWN_KIND, Journal

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
    journal = Journal(pathlib.Path(task.journal))
    try:
        watching.watch(journal)
        process.switch_on(task.method)
        target, batch = task.target, task.batch
        if target.kind == SCRIPT or batch is None:
            size = "" if batch is None else str(batch)
            given = [each.replace(BATCH_PLACE, size) for each in target.arguments]
            running_scripts.run_script(target.name, given, as_module=False)
            return
        if target.kind != FUNCTION:
            step = step_of_saved_model(target.name, target.signature, batch)
            _run_steps(step, journal, task.seconds)
            return
        sys.path.insert(0, str(pathlib.Path.cwd()))
        with running_scripts.raised_by_script():
            step = step_of_function(target.name, batch, task.mode)
            _run_steps(step, journal, task.seconds)
    except AmpError as error:
        if error.is_scripts_own:
            raise
        sys.exit(str(error))


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
        when_imported(lambda keras: keras.config.set_dtype_policy(_POLICY), "keras")
        when_imported(
            lambda keras: keras.mixed_precision.set_global_policy(_POLICY), "tf_keras"
        )
    if method == TENSORFLOW:
        when_imported(_switch_on_builtin_pass, "tensorflow")
    if is_ours(method):
        running_scripts.switch_on(settings_of_method(method))


def _switch_on_builtin_pass(tensorflow: Any) -> None:
    has_gpus = bool(tensorflow.config.list_physical_devices("GPU"))
    option = _PASS if has_gpus else _PASS_OF_CPUS
    tensorflow.config.optimizer.set_experimental_options({option: True})


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
    made = function(batch, mode=mode) if takes_mode else function(batch)
    if isinstance(made, tuple) and 2 <= len(made) <= 3:
        return _step_of_keras(name, made, batch, mode)
    if callable(made):
        return made  # type: ignore[no-any-return]
    raise ConfigError(f"{name} returned {type(made).__name__}; wanted is {_FORMS}.")


def _step_of_keras(name: str, made: tuple[Any, ...], batch: int, mode: str) -> Step:
    import tensorflow as tf

    model, *data = made
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
    """Return a call of a signature on a made-up batch; ConfigError if it takes none."""
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
