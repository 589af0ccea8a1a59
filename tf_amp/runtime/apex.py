"""The calls that scripts for Apex and MXNet make, so that these can be ported as is.

Losses are scaled where gradients are computed, so these calls scale nothing a second
time: `initialize` switches mixed precision on, `scale_loss` hands the loss on, and
chooses among several loss scales where the program asked for several.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from tf_amp.config.amp_config import AmpConfig, checked_level
from tf_amp.config.loss_scales.arguments import check_count, check_power_of_two
from tf_amp.config.loss_scales.choosing import loss_scale_for
from tf_amp.config.loss_scales.dynamic import DynamicLossScale
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import loss_scale_from_words
from tf_amp.errors import ConfigError
from tf_amp.runtime import scope, switch
from tf_amp.tracing.in_force import current_config

# Arguments of Apex that mean nothing here, with the reason.
_WITHOUT_EFFECT = {
    "cast_model_outputs": "outputs keep the type the program gave them",
    "cast_model_type": "types are chosen operation by operation",
    "delay_overflow_check": "each call for gradients is checked",
    "delay_unscale": "gradients are in true units wherever they are summed",
    "keep_batchnorm_fp32": "the op lists and the costs decide",
    "master_weights": "weights are float32 always",
    "model": "the gradients are found without it",
    "patch_torch_functions": "graphs are rewritten, not functions",
    "verbosity": "the log level of absl decides",
}


# One loss scale per loss, where `initialize` received `num_losses`, else none;
# None: it was not called.
_initialized: tuple[LossScale, ...] | None = None

# What a dynamic loss scale is kept between: of the arguments those that were given.
_Bounds = Mapping[str, float]


def initialize(
    model: Any,
    optimizer: Any = None,
    opt_level: str = "O1",
    *,
    enabled: bool = True,
    loss_scale: LossScale | float | str | None = None,
    num_losses: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float | None = None,
    **others: Any,
) -> Any:
    """Switch mixed precision on, as Apex' `amp.initialize` does.

    Args:
      model: one, or a list of several; returned as given.
      optimizer: one, a list of several, or None; returned as given.
      opt_level: "O0" to "O3".
      enabled: False leaves everything float32.
      loss_scale: "dynamic", a number, or a loss scale; by default as the type needs.
      num_losses: how many losses have a loss scale of their own, which
        `scale_loss(..., loss_id=)` chooses.
      min_loss_scale: lowest scale of a dynamic one, a power of two.
      max_loss_scale: highest scale of a dynamic one, a power of two; where that is
        below the scale to begin with, it begins there.
      **others: further arguments of Apex, which have no effect here.

    Returns:
      (model, optimizer), or the model alone where there is no optimizer.

    Raises:
      ConfigError: an argument is none of those allowed.
    """
    global _initialized
    _check_each("initialize", "model", model, callable, "a model or a list of models")
    if optimizer is not None:
        _check_optimizers("initialize", optimizer)
    _note_without_effect("initialize", others)
    check_count("initialize", "num_losses", num_losses)
    if enabled:
        both = {"min_loss_scale": min_loss_scale, "max_loss_scale": max_loss_scale}
        bounds = {name: value for name, value in both.items() if value is not None}
        for name, value in bounds.items():
            check_power_of_two("initialize", name, value)
        chosen = _loss_scale(loss_scale, opt_level, bounds)
        switch.enable(opt_level=opt_level, loss_scale=chosen)
    else:
        switch.disable()
    _initialized = _copies(num_losses) if num_losses > 1 else ()
    return model if optimizer is None else (model, optimizer)


@contextlib.contextmanager
def scale_loss(
    loss: Any, optimizer: Any, loss_id: int = 0, **others: Any
) -> Iterator[Any]:
    """Give the loss to start gradients from, as Apex' and MXNet's `scale_loss` do.

    It is the loss as it is: the gradient function scales what it starts from, and
    returns true gradients, in the body of the `with` statement and elsewhere.

    Args:
      loss: a tensor, several, or a function that returns one.
      optimizer: that the gradients are for; one or a list.
      loss_id: which of the `num_losses` given to `initialize` this is, from 0.
      **others: further arguments of Apex, which have no effect here.

    Raises:
      ConfigError: mixed precision was not initialized, or an argument is none of those
        allowed.
    """
    _check_optimizers("scale_loss", optimizer)
    _note_without_effect("scale_loss", others)
    if _initialized is None and current_config() is None:
        raise ConfigError(
            "scale_loss: mixed precision is off. Call tf_amp.initialize(model, "
            "optimizer) or tf_amp.init() first, or enter a mixed_precision_scope()."
        )
    logging.log_first_n(
        logging.WARNING,
        "tf_amp.scale_loss hands the loss on as it is: it is scaled, once, where its "
        "gradients are computed, and they come out in true units.",
        1,
    )
    with _own_loss_scale(loss_id):
        yield loss


def init_trainer(trainer: Any) -> None:
    """Do nothing to an optimizer, which MXNet's `init_trainer` prepares for scaling.

    Steps that overflow are skipped for every optimizer while mixed precision is on.

    Raises:
      ConfigError: mixed precision is off, or this is no optimizer.
    """
    _check_optimizers("init_trainer", trainer)
    if _initialized is None and current_config() is None:
        raise ConfigError(
            "init_trainer: mixed precision is off. Call tf_amp.init() first."
        )
    logging.log_first_n(
        logging.WARNING,
        "tf_amp.init_trainer leaves the optimizer as it is: losses are scaled where "
        "gradients are computed, and steps that overflow are skipped.",
        1,
    )


def _own_loss_scale(loss_id: int) -> contextlib.AbstractContextManager[Any]:
    loss_scales = _initialized or ()
    count = max(len(loss_scales), 1)
    if not isinstance(loss_id, int) or not 0 <= loss_id < count:
        raise ConfigError(
            f"scale_loss: loss_id={loss_id!r}; allowed are 0 to {count - 1}. Say in "
            "initialize(num_losses=...) how many losses there are."
        )
    config = current_config()
    if not loss_scales or config is None:
        return contextlib.nullcontext()
    return scope.mixed_precision_scope(
        config.dtype, loss_scale=loss_scales[loss_id], opt_level=config.opt_level
    )


def _copies(count: int) -> tuple[LossScale, ...]:
    """Return loss scales like the one in force, each with a state of its own."""
    loss_scale = loss_scale_for(current_config())
    if not loss_scale.scales:
        return ()
    return tuple(copy.copy(loss_scale) for _ in range(count))


def _loss_scale(
    given: LossScale | float | str | None, opt_level: str, bounds: _Bounds
) -> LossScale | None:
    """Return the loss scale that was asked for; None leaves it to the type."""
    asked = None if given is None else loss_scale_from_words(given)
    # The very object that was given stays, which its state is found by.
    if not bounds:
        return asked
    level = checked_level(opt_level)
    config = dataclasses.replace(AmpConfig.from_env(), opt_level=level)
    loss_scale = loss_scale_for(config) if asked is None else asked
    if isinstance(loss_scale, DynamicLossScale):
        return _within(loss_scale, bounds)
    for name in bounds:
        _note_one("initialize", name, "the loss scale is not dynamic")
    return asked


def _within(loss_scale: DynamicLossScale, bounds: _Bounds) -> DynamicLossScale:
    """Return a loss scale with other bounds, which it begins within, as in Apex."""
    low, high = bounds.get("min_loss_scale"), bounds.get("max_loss_scale")
    # One bound alone may lie beyond the other's default, and moves it along.
    least = min(loss_scale.minimum, high or math.inf) if low is None else low
    most = max(loss_scale.maximum, least) if high is None else high
    initial = min(max(loss_scale.initial, least), most)
    return dataclasses.replace(loss_scale, initial=initial, minimum=least, maximum=most)


def _check_optimizers(caller: str, given: Any) -> None:
    _check_each(
        caller,
        "optimizer",
        given,
        lambda one: hasattr(one, "apply_gradients"),
        "a Keras or tf.compat.v1 optimizer, or a list of them",
    )


def _check_each(caller: str, name: str, given: Any, is_one: Any, allowed: str) -> None:
    several: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    wrong = [one for one in several if not is_one(one)]
    if wrong or not several:
        raise ConfigError(
            f"{caller}: {name}: received {wrong[0] if wrong else given!r}; allowed is "
            f"{allowed}."
        )


def _note_without_effect(caller: str, others: dict[str, Any]) -> None:
    unknown = [name for name in others if name not in _WITHOUT_EFFECT]
    if unknown:
        raise ConfigError(
            f"{caller}: unknown argument {unknown[0]!r}; Apex' own that are accepted "
            f"without effect are {', '.join(_WITHOUT_EFFECT)}."
        )
    for name in others:
        _note_one(caller, name, _WITHOUT_EFFECT[name])


def _note_one(caller: str, name: str, why: str) -> None:
    logging.log_first_n(
        logging.INFO,
        "%s: %s has no effect: %s.",
        len(_WITHOUT_EFFECT),
        caller,
        name,
        why,
    )
