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
    Hook,
    acting_before,
    exports,
    install_when_imported,
)
from tf_amp._tensorflow_private import install as install_hook
from tf_amp._tensorflow_private import training as private
from tf_amp.config.loss_scales.choosing import NO_SCALING
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.training.finiteness import scale_at_run_time
from tf_amp.training.finiteness.of_gradients import each_is_finite
from tf_amp.training.finiteness.tallies import can_vote
from tf_amp.training.fusions import (
    batch_statistics,
    gelu_gradients,
    optimizer_steps,
    row_reads,
)
from tf_amp.training.gradients import (
    exported_states,
    gradient_context,
    tape_calls,
)
from tf_amp.training.gradients import seed_gradients as gradient_seeds
from tf_amp.training.gradients.existing_scaling import (
    is_scaled_by_user,
    noting_scaled_losses,
)
from tf_amp.training.gradients.replacements import finished_but_for_them
from tf_amp.training.gradients.seed_gradients import has_gradient, is_number, is_real
from tf_amp.training.gradients.unscaling import ScaledCall, map_scalable
from tf_amp.training.optimizers import assignments, optimizers

Current = Callable[[], LossScale]

_WHEN_IMPORTED: dict[Hook, Callable[[Any], Any]] = {
    **optimizers.HOOKS,
    **dict.fromkeys(private.USER_SCALING, noting_scaled_losses),
    **optimizer_steps.HOOKS,
    **batch_statistics.HOOKS,
    **row_reads.HOOKS,
    **gelu_gradients.HOOKS,
}


def install(current: Current) -> None:
    """Decorate every way to gradients, and every optimizer once it is imported.

    Args:
      current: returns the loss scale for a call for gradients made now.
    """
    current = functools.partial(_loss_scale_here, current)
    tape = functools.partial(_scaling_tape, current=current)
    install_hook(private.TAPE_GRADIENT, tape)
    install_hook(private.TAPE_ENTER, acting_before(tape_calls.note_entered))
    install_hook(private.TAPE_RESET, acting_before(tape_calls.note_reset))
    graph = functools.partial(_scaling_graph, current=current)
    install_hook(private.GRAPH_GRADIENTS, graph)
    loop = functools.partial(_checking_loop, current=current)
    install_hook(private.VECTORIZED_LOOP, loop)
    install_hook(private.PYTHON_FUNCTION, gradient_context.passing_through_python)
    # Accumulators use gradients for what is linear in their tangents: nobody scales it.
    install_hook(private.FORWARD_GRADIENT, gradient_context.differentiating())
    assignments.install()
    install_hook(exports.SET_SIGNATURE, exported_states.tracking_states)
    for hook, wrap in _WHEN_IMPORTED.items():
        install_when_imported(hook, wrap)


def _loss_scale_here(current: Current) -> LossScale:
    """Return the loss scale; none for what is exported, which others run."""
    return NO_SCALING if exports.is_exporting() else current()


def _scaling_tape(gradient: Callable[..., Any], current: Current) -> Callable[..., Any]:
    @functools.wraps(gradient)
    def scaled_gradient(
        tape: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        targets, given = gradient_seeds.targets_and_seeds(target, output_gradients)
        call = _begin(targets, given, sources, current, tape)
        if call is None:
            return gradient(tape, target, sources, output_gradients, *args, **kwargs)
        seeds = call.seeds(gradient_seeds.with_ones(targets, given, is_number))
        compute = functools.partial(
            gradient, tape, target, sources, seeds, *args, **kwargs
        )
        finish = functools.partial(_finish, call)
        return finished_but_for_them(
            finish, gradient_context.computed(call, compute), sources
        )

    return scaled_gradient


def _scaling_graph(module: Any, current: Current) -> Any:
    """Return `gradients_util` as `tf.gradients` sees it, with its function scaled.

    Others use the same function for the gradients of loops and functions, which start
    from scaled gradients already.
    """
    compute = private.gradients_function(module)
    if compute is None:
        return module

    @functools.wraps(compute)
    def scaled_gradients(
        ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        targets, given = gradient_seeds.targets_and_seeds(ys, grad_ys)
        call = _begin(targets, given, xs, current)
        if call is None:
            return compute(ys, xs, grad_ys, *args, **kwargs)
        seeds = call.seeds(gradient_seeds.with_ones(targets, given, is_real))
        scaled = functools.partial(compute, ys, xs, seeds, *args, **kwargs)
        return _finish(call, gradient_context.computed(call, scaled))

    return private.with_gradients_function(module, scaled_gradients)


def _checking_loop(loop: Callable[..., Any], current: Current) -> Callable[..., Any]:
    """Return `pfor` with the gradients taken in its body checked after it.

    Its body admits neither branches nor assignments.
    """

    @functools.wraps(loop)
    def checked_loop(body: Any, *args: Any, **kwargs: Any) -> Any:
        if gradient_context.is_differentiating() or not current().scales:
            return loop(body, *args, **kwargs)
        if not _is_ordinary(body) or not can_vote():
            with gradient_context.differentiating():
                return loop(body, *args, **kwargs)
        outer = gradient_context.loop_at_work()
        this = gradient_context.Loop(outer.call if outer else ScaledCall(current()))
        run = functools.partial(loop, _with_flags(body, this), *args, **kwargs)
        scale = this.call.scale
        result, flags = run() if outer else scale_at_run_time.computed_at(scale, run)
        if not flags:
            return result
        finite = tf.reduce_all(tf.stack([tf.reduce_all(flag) for flag in flags]))
        gradients, put = this.split(result)
        if outer is None:
            call = tape_calls.call_of_loop(this.tapes, this.call)
            return put(call.checked_results(gradients, finite))
        outer.finite.append(finite)
        outer.gradients.extend(filter(tf.is_tensor, gradients))
        outer.tapes.extend(this.tapes)
        return result

    return checked_loop


def _with_flags(
    body: Callable[..., Any], loop: gradient_context.Loop
) -> Callable[..., Any]:
    """Return a loop's body that tells also whether its gradients are finite."""
    converted = private.converted(body)

    @private.unconverted
    def body_with_flags(index: Any) -> Any:
        loop.clear()
        with gradient_context.in_loop(loop):
            results = converted(index)
        loop.note_results(results)
        return results, list(loop.finite)

    return body_with_flags


def _is_ordinary(body: Any) -> bool:
    """Return whether a loop's body is called with an index and nothing else."""
    parameters = inspect.signature(body).parameters
    return inspect.isfunction(body) and "pfor_config" not in parameters


def _begin(
    targets: Sequence[Any],
    given: Sequence[Any],
    sources: Any,
    current: Current,
    tape: Any = None,
) -> ScaledCall | None:
    """Return a call to be scaled; None where gradients are to be left alone."""
    # Who asks for gradients is about to change weights.
    kept_kernels.stop_keeping()
    if gradient_context.is_differentiating() or not any(map(has_gradient, targets)):
        return None
    loss_scale = current()
    if not loss_scale.scales or is_scaled_by_user(targets):
        return None
    # TensorFlow says what is wrong with seeds of another number.
    if len(targets) != len(given) or not gradient_seeds.are_known(targets):
        return None
    if not can_vote():
        return None
    return _call(loss_scale, sources, tape).for_targets(targets)


def _call(loss_scale: LossScale, sources: Any, tape: Any) -> ScaledCall:
    """Return the call that a request for gradients belongs to."""
    loop = gradient_context.loop_at_work()
    if loop is not None:
        loop.tapes.extend([tape] if tape else [])
        return loop.call
    if tape is not None:
        return tape_calls.call_of(tape, loss_scale, sources)
    return tape_calls.call_for_sources(loss_scale, sources)


def _finish(call: ScaledCall, gradients: Any) -> Any:
    loop = gradient_context.loop_at_work()
    if loop is None:
        return call.results(gradients)

    def unscaled_and_noted(scaled: Sequence[Any]) -> list[Any]:
        unscaled = call.unscaled(scaled)
        loop.finite.append(each_is_finite(unscaled))
        loop.gradients.extend(unscaled)
        return unscaled

    return map_scalable(unscaled_and_noted, gradients)
