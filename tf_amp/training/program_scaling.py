"""What a program does about scaled losses itself, and takes with it.

- Loss scale optimizers of Keras and TensorFlow scale losses, and are known by what
  their scaling functions return: then tf-amp does not. A policy scales nothing:
  mixed_float16 lets `compile` put such an optimizer around the model's.
- A custom gradient that is not linear can ask for true gradients:

      @tf.custom_gradient
      def clipped(x):
          @tf_amp.in_true_units
          def slope(upstream):
              return tf.clip_by_value(upstream, -1.0, 1.0)

          return x, slope

- A function in a SavedModel that was traced while losses were scaled goes on scaling
  them elsewhere. Its state goes with it, and begins there as it is here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import tensorflow as tf

from tf_amp._tensorflow_private import (
    functions,
    graphs,
    tracing,
    wrapping_unconverted,
)
from tf_amp.config.devices import loss_scale_for
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code
from tf_amp.tracing.stack import keeping_float32
from tf_amp.tracing.stamps import current_config
from tf_amp.training import scale_at_run_time, tape_calls
from tf_amp.training.finite_flags import descends_from, further_counters_of
from tf_amp.training.scale_state import eager_states
from tf_amp.training.scaling import Scaling, map_scalable, scaling_of

# On tensors, and on graphs with such tensors.
_SCALED = "_tf_amp_scaled_by_user"
_EXCHANGES = ("horovod.tensorflow", "byteps.tensorflow")


@wrapping_unconverted
def scale_and_note(
    scale_loss: Callable[..., Any],
    optimizer: Any,
    loss: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Scale as an optimizer does, and leave a note on what was scaled.

    It is a loss, or a function that returns one.
    """
    scaled = scale_loss(optimizer, loss, *args, **kwargs)
    if callable(scaled) and not tf.is_tensor(scaled):
        return lambda: _note(scaled())
    return scaled if scaled is loss else _note(scaled)


def is_scaled_by_user(targets: Iterable[Any]) -> bool:
    """Return whether an optimizer scales these losses; if so, say it once."""
    targets = list(targets)
    is_scaled = any(map(_has_note, targets))
    if not is_scaled:
        # A note on the graph saves most the walk.
        around = tracing.outwards(tf.compat.v1.get_default_graph())
        is_scaled = any(map(_has_note, around)) and descends_from(targets, _has_note)
    if is_scaled:
        Code.SCALED_ALREADY.warn_once(
            "An optimizer of the program scales the losses, so tf-amp does not."
        )
    return is_scaled


def is_scaling_forbidden() -> bool:
    """Return whether ranks would part if losses were scaled; if so, say it once.

    Where processes exchange gradients in a way that TensorFlow does not know of, an
    overflow on one cannot be agreed on with the others: each would skip other steps,
    and have another scale.
    """

    def has_ranks(library: str) -> bool:
        """Say whether it exchanges with others; it does not before it has begun."""
        try:
            module: Any = sys.modules.get(library)
            return module is not None and int(module.size()) > 1
        except (AttributeError, ValueError):
            return False

    library = next(filter(has_ranks, _EXCHANGES), None)
    if library is None:
        return False
    Code.NOT_SCALED.warn_once(
        "Gradients are exchanged by %s, where ranks cannot agree on a loss scale: "
        "losses are not scaled. Take bfloat16, which needs no scaling; or float16 "
        "with a strategy of TensorFlow's own, such as MultiWorkerMirroredStrategy.",
        library.partition(".")[0],
    )
    return True


def _note(scaled: Any) -> Any:
    if isinstance(scaled, tf.Tensor):
        setattr(scaled, _SCALED, True)
        if not tf.executing_eagerly():
            setattr(scaled.graph, _SCALED, True)
    return scaled


def _has_note(tensor_or_graph: Any) -> bool:
    return hasattr(tensor_or_graph, _SCALED)


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


def _call_here() -> Scaling | None:
    """Return the scaling of the gradients here.

    The gradient of a function may be traced before anyone asks for it: then the scale
    is known when it runs.
    """
    call = tape_calls.call_at_work()
    if call is not None:
        return call.here()
    if tf.executing_eagerly() or functions.is_exporting():
        return None
    loss_scale = loss_scale_for(current_config())
    if not loss_scale.scales:
        return None
    call = scaling_of(loss_scale)
    if not scale_at_run_time.is_eager_outside():
        return call
    return call.at_scale(scale_at_run_time.scale_at_work())


_CHILD = "tf_amp_state"


def track_states(result: Any, view: Any, *args: Any, **kwargs: Any) -> None:
    """Add states to the functions of a SavedModel, once these are named."""
    captured = {id(tensor) for tensor in graphs.captured_inputs(view)}

    def is_used(variable: Any) -> bool:
        copies = getattr(variable, "values", None) or (variable,)
        return any(id(getattr(one, "handle", None)) in captured for one in copies)

    # What functions that scale losses may read and write.
    ours = scale_at_run_time.own_variables()
    for state in eager_states():
        counters = further_counters_of(state)
        ours += state.variables_by_kind.values()
        ours += [each.variable for each in counters if not each.is_of_replica]
    used = list(filter(is_used, ours))
    if used:
        child = tf.Module()
        child.variables_of_functions = used
        graphs.add_child(view, _CHILD, child)
