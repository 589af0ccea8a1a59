"""True gradients for custom gradients that are not linear.

@tf.custom_gradient
def clipped(x):
    @tf_amp.in_true_units
    def slope(upstream):
        return tf.clip_by_value(upstream, -1.0, 1.0)

    return x, slope
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from tf_amp._tensorflow_private import graphs
from tf_amp.config.devices import loss_scale_for
from tf_amp.errors import ConfigError
from tf_amp.tracing.stack import keeping_float32
from tf_amp.tracing.stamps import current_config
from tf_amp.training.finiteness import scale_at_run_time
from tf_amp.training.gradients import gradient_context
from tf_amp.training.gradients.unscaling import ScaledCall, map_scalable

_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_true_units(slope: _Function) -> _Function:
    """Let the gradient function of a `tf.custom_gradient` see unscaled gradients.

    What it is given is unscaled, what it returns is scaled again, and what it computes
    stays in float32. Without that a gradient function sees what is multiplied by the
    loss scale, which only matters to one that is not linear: that clips, for example.

    Raises:
      ConfigError: this is no function.
    """
    if not callable(slope):
        raise ConfigError(f"in_true_units decorates functions; received {slope!r}.")

    scale_at_run_time.note_asker()

    @functools.wraps(slope)
    def slope_in_true_units(*upstream: Any, **options: Any) -> Any:
        call = _call_here()
        if call is None:
            return slope(*upstream, **options)
        given = map_scalable(call.for_a_while_unscaled, list(upstream))
        # True gradients may be too small for float16.
        with keeping_float32("in_true_units"):
            results = slope(*given, **options)
        return map_scalable(call.seeds, results)

    return cast(_Function, slope_in_true_units)


def _call_here() -> ScaledCall | None:
    """Return what the gradients here are scaled by.

    The gradient of a function may be traced before anyone asks for it: then the scale
    is known when it runs.
    """
    call = gradient_context.call_at_work()
    if call is not None:
        return call.here()
    if tf.executing_eagerly() or graphs.is_exporting():
        return None
    loss_scale = loss_scale_for(current_config())
    if not loss_scale.scales:
        return None
    call = ScaledCall(loss_scale)
    if not scale_at_run_time.is_eager_outside():
        return call
    return call.at_scale(scale_at_run_time.scale_at_work())
