"""What a model runs for each step, replaced for the time of one `fit`.

Keras keeps three functions on a model, makes them when they are first needed and
traces them when they are first called. Another one in such a place trains the model
just as well, and nothing else about the model changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tf_amp.runtime import model_scopes
from tf_amp.tracing import stack as scope_stack

StepFunction = Callable[..., Any]

_LAYER = "_tf_amp_layer"
# What tf_keras keeps beside them.
_BESIDE = "_tf_function"


def fresh(model: Any, role: str) -> StepFunction:
    """Return a step function that has not been traced; the model keeps the one it has.

    The model is compiled; the role is "train", "test" or "predict".
    """
    place = f"{role}_function"
    kept = {name: getattr(model, name, None) for name in (place, role + _BESIDE)}
    setattr(model, place, None)
    try:
        made = getattr(model, f"make_{role}_function")()
        function: StepFunction = getattr(model, place) or made
    finally:
        for name, value in kept.items():
            if hasattr(model, name):
                setattr(model, name, value)
    return function


def in_layer(
    function: StepFunction,
    layer: scope_stack.Layer,
    note: Callable[[], None] | None = None,
) -> StepFunction:
    """Return a step function that is called, and so traced, within a scope's layer.

    The layer goes before the scopes around the call; `note` is called before each call.
    """

    def call_in_layer(*args: Any, **kwargs: Any) -> Any:
        if note is not None:
            note()
        with scope_stack.within((*scope_stack.layers(), layer)):
            return function(*args, **kwargs)

    setattr(call_in_layer, _LAYER, layer)
    return wrapping(call_in_layer, function)


def fresh_alike(
    model: Any, role: str, innermost: scope_stack.Layer | None = None
) -> StepFunction:
    """Return a fresh step function in the same layers as the one the model has.

    `innermost` is one more layer, within all others.
    """
    layers = [getattr(each, _LAYER, None) for each in _chain(current(model, role))]
    function = fresh(model, role)
    for layer in (innermost, *reversed(layers)):
        function = function if layer is None else in_layer(function, layer)
    return function


def wrapping(outer: StepFunction, inner: StepFunction) -> StepFunction:
    """Note that a function stands for another one, and return it."""
    outer.__dict__["__wrapped__"] = inner
    return outer


def current(model: Any, role: str) -> StepFunction | None:
    """Return the step function that a model has at the moment."""
    return getattr(model, f"{role}_function", None)


def steps_per_call(model: Any) -> int:
    """Return how many steps of training one call of the function takes."""
    steps = getattr(model, "steps_per_execution", None)
    return 1 if steps is None else int(number(steps))


def is_within(function: StepFunction | None, part: StepFunction | None) -> bool:
    """Return whether a step function is another one, or stands for it."""
    return part is not None and any(each is part for each in _chain(function))


def put(model: Any, role: str, function: StepFunction) -> None:
    """Replace a step function until the running call of `fit` ends."""
    model_scopes.undo_after_call(model, put_now(model, role, function))


def put_now(model: Any, role: str, function: StepFunction) -> Callable[[], None]:
    """Replace a step function, and return what puts back the one before."""
    place = f"{role}_function"
    before = getattr(model, place, None)
    setattr(model, place, function)
    reference = weakref.ref(model)

    def put_back() -> None:
        model = reference()
        if model is not None and is_within(getattr(model, place, None), function):
            setattr(model, place, before)

    return put_back


def _chain(function: StepFunction | None) -> list[StepFunction]:
    """Return a function and those it stands for, outermost first."""
    chain = []
    while function is not None:
        chain.append(function)
        function = getattr(function, "__dict__", {}).get("__wrapped__")
    return chain


def number(value: Any) -> float:
    """Return a scalar as Python has it; waits for the device.

    It may be a number, a tensor, or a variable of TensorFlow, Keras or a strategy.
    """
    return float(tf.convert_to_tensor(value))


def steps_up_to(batch: int, params: Mapping[str, Any] | None) -> int:
    """Return how many steps of an epoch there were once a batch has ended.

    Batches count from 0; the last of several in one call may be none in fact. `params`
    is what Keras says of the run.
    """
    in_epoch = (params or {}).get("steps")
    return batch + 1 if in_epoch is None else min(batch + 1, int(in_epoch))
