"""The calls that scripts for Apex and MXNet make, so that these can be ported as is.

Losses are scaled where gradients are computed, so these calls scale nothing a second
time: `initialize` switches mixed precision on, `scale_loss` passes the loss on, and
chooses among several loss scales where the program asked for several.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any

from absl import logging

from tf_amp.config.amp_config import OptLevel
from tf_amp.config.devices import loss_scale_for
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import LossScaleWord
from tf_amp.errors import ConfigError
from tf_amp.runtime import scope
from tf_amp.runtime.enabling import disable, enable
from tf_amp.tracing.stamps import current_config

# One loss scale per loss, where `initialize` received `num_losses`, else none;
# None: it was not called.
_initialized: tuple[LossScale, ...] | None = None
_WITHOUT_EFFECT = (
    "cast_model_outputs cast_model_type delay_overflow_check delay_unscale "
    "keep_batchnorm_fp32 master_weights model patch_torch_functions verbosity"
).split()


def initialize(
    model: Any,
    optimizer: Any = None,
    opt_level: OptLevel = "O1",
    *,
    enabled: bool = True,
    loss_scale: LossScale | float | LossScaleWord | str | None = None,
    num_losses: int = 1,
    **others: Any,
) -> Any:
    """Switch mixed precision on, as Apex' `amp.initialize` does.

    Args:
      model: one, or a list of several; returned as given.
      optimizer: one, a list of several, or None; returned as given.
      opt_level: "O0" to "O3".
      enabled: False leaves everything float32.
      loss_scale: "dynamic", a number, or a loss scale, such as one with the bounds of
        `min_loss_scale` and `max_loss_scale`, `DynamicLossScale(minimum=, maximum=)`;
        by default as the type needs.
      num_losses: how many losses have a loss scale of their own, which
        `scale_loss(..., loss_id=)` chooses.
      **others: further arguments of Apex, which have no effect here.

    Returns:
      (model, optimizer), or the model alone where there is no optimizer.

    Raises:
      ConfigError: an argument is none of those allowed.
    """
    global _initialized
    _check_each("initialize: model", model, "__call__", "a model or a list of models")
    if optimizer is not None:
        _check_optimizers("initialize", optimizer)
    _note_without_effect("initialize", others)
    check_count("initialize", "num_losses", num_losses)
    if enabled:
        enable(opt_level=opt_level, loss_scale=loss_scale)
    else:
        disable()
    own = loss_scale_for(current_config())
    several = num_losses if num_losses > 1 and own.scales else 0
    _initialized = tuple(copy.copy(own) for _ in range(several))
    return model if optimizer is None else (model, optimizer)


@contextlib.contextmanager
def scale_loss(
    loss: Any, optimizer: Any, loss_id: int = 0, **others: Any
) -> Iterator[Any]:
    """Give the loss to start gradients from, as Apex' and MXNet's `scale_loss` do.

    It is the loss unchanged: the gradient function scales what it starts from, and
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
    _note_without_effect("scale_loss", others)
    _check_call("scale_loss", optimizer, "returns the loss unchanged")
    loss_scales = _initialized or ()
    count = max(len(loss_scales), 1)
    if not isinstance(loss_id, int) or not 0 <= loss_id < count:
        raise ConfigError(
            f"scale_loss: loss_id={loss_id!r}; allowed are 0 to {count - 1}. Say in "
            "initialize(num_losses=...) how many losses there are."
        )
    config = current_config()
    own: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if loss_scales and config is not None:
        own = scope.mixed_precision_scope(
            config.dtype, loss_scale=loss_scales[loss_id], opt_level=config.opt_level
        )
    with own:
        yield loss


def init_trainer(trainer: Any) -> None:
    """Do nothing to an optimizer, which MXNet's `init_trainer` prepares for scaling.

    Steps that overflow are skipped for every optimizer while mixed precision is on.

    Raises:
      ConfigError: mixed precision is off, or this is no optimizer.
    """
    _check_call("init_trainer", trainer, "leaves the optimizer unchanged")


def _check_call(caller: str, optimizer: Any, what: str) -> None:
    """Refuse what is no optimizer, or to go on in float32; say what a call does."""
    _check_optimizers(caller, optimizer)
    if _initialized is None and current_config() is None:
        raise ConfigError(
            f"{caller}: mixed precision is off. Call tf_amp.initialize(model, "
            "optimizer) or tf_amp.init() first, or enter a mixed_precision_scope()."
        )
    _note(caller, f"{what}: losses are scaled, once, where gradients are computed")


def _check_optimizers(caller: str, given: Any) -> None:
    allowed = "a Keras or tf.compat.v1 optimizer, or a list of them"
    _check_each(f"{caller}: optimizer", given, "apply_gradients", allowed)


def _check_each(name: str, given: Any, method: str, allowed: str) -> None:
    several = given if isinstance(given, (list, tuple)) else [given]
    wrong = [one for one in several if not hasattr(one, method)]
    if wrong or not several:
        received = wrong[0] if wrong else given
        raise ConfigError(f"{name}: received {received!r}; allowed is {allowed}.")


def _note_without_effect(caller: str, others: dict[str, Any]) -> None:
    for name in others:
        if name not in _WITHOUT_EFFECT:
            raise ConfigError(
                f"{caller}: unknown argument {name!r}; Apex' own that are accepted "
                f"without effect are {', '.join(_WITHOUT_EFFECT)}. Bounds of a loss "
                "scale are those of loss_scale=DynamicLossScale(minimum=, maximum=)."
            )
        _note(caller, f"{name} has no effect", logging.INFO)


@functools.cache
def _note(caller: str, text: str, level: int = logging.WARNING) -> None:
    """Log a line once."""
    logging.log(level, "tf_amp.%s: %s.", caller, text)
