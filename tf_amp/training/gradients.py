"""Decorators on the functions that compute gradients.

Whatever asks for gradients goes through `tf.GradientTape.gradient` or through what
`tf.gradients` calls: optimizers, Keras, jacobians and hand-written loops. Each such
call is scaled once: what is asked for while another call is at work, as recomputation
does, starts from that call's scaled gradients already.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass import kept_kernels
from tf_amp._tensorflow_private import (
    acting_after,
    acting_before,
    functions,
    graphs,
    unconverted,
    wrapping,
)
from tf_amp._tensorflow_private import install as install_hooks
from tf_amp._tensorflow_private import training as private
from tf_amp.config.devices import NO_SCALING
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.training import (
    assignments,
    finite_flags,
    gradient_seeds,
    layer_fusions,
    optimizer_fusions,
    optimizers,
    program_scaling,
    scale_at_run_time,
    tape_calls,
)
from tf_amp.training.finite_flags import can_check
from tf_amp.training.gradient_seeds import (
    has_gradient,
    is_number,
    is_real,
    power_of_two_below,
)
from tf_amp.training.program_scaling import is_scaled_by_user, scale_and_note
from tf_amp.training.scale_update import each_is_finite
from tf_amp.training.scaling import (
    Scaling,
    checked_results,
    map_scalable,
    results_of,
    scaling_of,
)

Current = Callable[[], LossScale]


def install(current: Current) -> None:
    """Decorate every way to gradients, and every optimizer once it is imported.

    Args:
      current: returns the loss scale for a call for gradients made now.
    """

    def scaling(take: Callable[..., Any]) -> Callable[[Any], Any]:
        return wrapping(functools.partial(take, current_here))

    def current_here() -> LossScale:
        # Others run what is exported.
        return NO_SCALING if functions.is_exporting() else current()

    install_hooks(
        {
            private.TAPE_GRADIENT: scaling(_tape_gradient),
            private.TAPE_ENTER: acting_before(tape_calls.note_entered),
            private.TAPE_RESET: acting_before(tape_calls.note_reset),
            private.GRAPH_GRADIENTS: functools.partial(
                private.with_gradients_function, wrap=scaling(_graph_gradients)
            ),
            private.GRADIENT_LOOKUP: gradient_seeds.passing_on,
            private.VECTORIZED_LOOP: scaling(_checked_loop),
            private.PYTHON_FUNCTION: tape_calls.passing_through_python,
            # Accumulators use gradients for what is linear in their tangents: nobody
            # scales it.
            private.FORWARD_GRADIENT: tape_calls.differentiating(),
            graphs.SET_SIGNATURE: acting_after(program_scaling.track_states),
            **optimizers.HOOKS,
            **dict.fromkeys(private.USER_SCALING, scale_and_note),
            **optimizer_fusions.HOOKS,
            **layer_fusions.HOOKS,
        }
    )


def _tape_gradient(
    current: Current,
    gradient: Callable[..., Any],
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Do what `GradientTape.gradient` does, with scaled losses."""
    targets, given = gradient_seeds.targets_and_seeds(target, output_gradients)
    call = _begin(targets, given, sources, current, tape)
    if call is None:
        return gradient(tape, target, sources, output_gradients, *args, **kwargs)
    seeds = call.seeds(gradient_seeds.with_ones(targets, given, is_number))
    compute = functools.partial(gradient, tape, target, sources, seeds, *args, **kwargs)
    product = gradient_seeds.FirstProduct(tape, targets, sources, call.scale)
    with gradient_seeds.sought(product):
        gradients = tape_calls.computed(call, compute)
    finish = functools.partial(_finish, call.relieved_by(product.power))
    return _finished_but_for_new_values(finish, gradients, sources)


def _graph_gradients(
    current: Current,
    compute: Callable[..., Any],
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Do what `tf.gradients` calls, with scaled losses.

    Others use the same function for the gradients of loops and functions, which start
    from scaled gradients already.
    """
    targets, given = gradient_seeds.targets_and_seeds(ys, grad_ys)
    call = _begin(targets, given, xs, current)
    if call is None:
        return compute(ys, xs, grad_ys, *args, **kwargs)
    seeds = call.seeds(gradient_seeds.with_ones(targets, given, is_real))
    scaled = functools.partial(compute, ys, xs, seeds, *args, **kwargs)
    return _finish(call, tape_calls.computed(call, scaled))


def _checked_loop(
    current: Current, loop: Callable[..., Any], body: Any, *args: Any, **kwargs: Any
) -> Any:
    """Do what `pfor` does, and check the gradients taken in its body after it.

    Its body admits neither branches nor assignments.
    """
    if tape_calls.is_differentiating() or not current().scales:
        return loop(body, *args, **kwargs)
    parameters = inspect.signature(body).parameters
    # A body is called with an index, some with more.
    is_ordinary = inspect.isfunction(body) and "pfor_config" not in parameters
    if not is_ordinary or not can_check():
        with tape_calls.differentiating():
            return loop(body, *args, **kwargs)
    outer = tape_calls.loop_at_work()
    this = tape_calls.Loop(outer.call if outer else scaling_of(current()))
    converted = private.converted(body)

    @unconverted
    def body_with_flags(index: Any) -> Any:
        """Return also whether the gradients that are taken are finite."""
        this.clear()
        with tape_calls.in_loop(this):
            results = converted(index)
        this.note_results(results)
        return results, list(this.finite)

    run = functools.partial(loop, body_with_flags, *args, **kwargs)
    scale = this.call.scale
    result, flags = run() if outer else scale_at_run_time.computed_at(scale, run)
    if not flags:
        return result
    finite = tf.reduce_all(tf.stack([tf.reduce_all(flag) for flag in flags]))
    gradients, put = this.split(result)
    if outer is None:
        call = tape_calls.scaling_of_loop(this.tapes, this.call)
        return put(checked_results(call, gradients, finite))
    outer.finite.append(finite)
    outer.gradients.extend(filter(tf.is_tensor, gradients))
    outer.tapes.extend(this.tapes)
    return result


def _begin(
    targets: Sequence[Any],
    given: Sequence[Any],
    sources: Any,
    current: Current,
    tape: Any = None,
) -> Scaling | None:
    """Return a call to be scaled; None where gradients are to be left alone."""
    # Who asks for gradients is about to change weights.
    kept_kernels.stop_keeping()
    if tape_calls.is_differentiating() or not any(map(has_gradient, targets)):
        return None
    loss_scale = current()
    if not loss_scale.scales or is_scaled_by_user(targets):
        return None
    # TensorFlow says what is wrong with seeds of another number.
    if len(targets) != len(given) or not gradient_seeds.are_known(targets):
        return None
    if not can_check():
        return None
    assignments.install()
    loop = tape_calls.loop_at_work()
    if loop is not None:
        loop.tapes.extend([tape] if tape else [])
        call = loop.call
    elif tape is not None:
        call = tape_calls.scaling_of_tape(tape, loss_scale, sources)
    else:
        call = tape_calls.scaling_for_sources(loss_scale, sources)
    call = call.for_targets(targets)
    return call.relieved_by(power_of_two_below(targets, given, sources))


def _finish(call: Scaling, gradients: Any) -> Any:
    loop = tape_calls.loop_at_work()
    if loop is None:
        return results_of(call, gradients)

    def unscaled_and_noted(scaled: Sequence[Any]) -> list[Any]:
        unscaled = call.unscaled(scaled)
        loop.finite.append(each_is_finite(unscaled))
        loop.gradients.extend(unscaled)
        return unscaled

    return map_scalable(unscaled_and_noted, gradients)


def _finished_but_for_new_values(
    finish: Callable[[Any], Any], gradients: Any, sources: Any
) -> Any:
    """Return gradients in true units, and new values in their place as they are.

    Keras' float8 layers hand on as the gradient of a scale, or of a history of maxima,
    what an optimizer is to write into it: not to be multiplied by the loss scale.

    Args:
      finish: returns a structure of gradients in true units, which carry a flag.
      gradients: of the sources, in their structure.
      sources: tensors and variables.
    """
    variables, flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
    are_new = [getattr(v, "overwrite_with_gradient", False) for v in variables]
    if not any(are_new):
        return finish(gradients)
    scaled = [None if new else g for new, g in zip(are_new, flat, strict=True)]
    finished = finish(scaled)
    results = tf.nest.flatten(finished, expand_composites=True)
    for new, value in zip(are_new, flat, strict=True):
        if new and value is not None:
            finite_flags.share_flag(results, value)
    whole = [
        value if new else g
        for new, value, g in zip(are_new, flat, finished, strict=True)
    ]
    return tf.nest.pack_sequence_as(gradients, whole)
