"""The step of a function of the user's, or of a SavedModel, as a callable."""

from __future__ import annotations

import importlib
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

from tf_amp.errors import ConfigError

Step = Callable[[], Any]
_SERVED = "serving_default"
_FORMS = "a callable without arguments, or (model, x[, y]) of Keras"


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

    from tf_amp.tools.graph_runs import batches

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
