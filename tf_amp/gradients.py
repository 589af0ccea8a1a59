"""Decorators on the functions that compute gradients.

Whatever asks for gradients goes through `tf.GradientTape.gradient` or through what
`tf.gradients` calls: optimizers, Keras, jacobians and hand-written loops. Each such
call is scaled once: what is asked for while another call is at work, as recomputation
does, starts from that call's scaled gradients already.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_amp import _tensorflow_private_exports as exports
from tf_amp import _tensorflow_private_training as private
from tf_amp import optimizers
from tf_amp._tensorflow_private import install as install_hook
from tf_amp.finiteness import each_is_finite, is_scalable
from tf_amp.loss_scaling.choosing import NO_SCALING
from tf_amp.loss_scaling.protocol import LossScale
from tf_amp.standing_aside import is_scaled_by_user, noting_scaled_losses
from tf_amp.unscaling import ScaledCall, map_scalable

Current = Callable[[], LossScale]


class _Thread(threading.local):
    """What this thread is in the middle of."""

    is_differentiating: bool = False
    call: ScaledCall | None = None
    loop: _Loop | None = None


class _Loop:
    """The body of a vectorized loop, whose gradients are checked after the loop."""

    def __init__(self, call: ScaledCall) -> None:
        self.call = call
        self.finite: list[Any] = []


_thread = _Thread()


def install(current: Current) -> None:
    """Decorate every way to gradients, and every optimizer that is loaded.

    Args:
      current: returns the loss scale for a call for gradients made now.
    """
    current = functools.partial(_loss_scale_here, current)
    tape = functools.partial(_scaling_tape, current=current)
    install_hook(private.TAPE_GRADIENT, tape)
    install_hook(private.TAPE_ENTER, _preparing)
    graph = functools.partial(_scaling_graph, current=current)
    install_hook(private.GRAPH_GRADIENTS, graph)
    loop = functools.partial(_checking_loop, current=current)
    install_hook(private.VECTORIZED_LOOP, loop)
    install_optimizers()


def _loss_scale_here(current: Current) -> LossScale:
    """Return the loss scale; none for what is exported, which others run."""
    return NO_SCALING if exports.is_exporting() else current()


def call_at_work() -> ScaledCall | None:
    """Return the call whose scaled gradients the running code computes, if any."""
    return _thread.call


def install_optimizers() -> None:
    """Decorate the optimizers of TensorFlow, and of Keras where it is loaded."""
    for hook, wrap in optimizers.HOOKS.items():
        private.install_if_loaded(hook, wrap)
    for hook in private.USER_SCALING:
        private.install_if_loaded(hook, noting_scaled_losses)


def _preparing(enter: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tape's `__enter__` that finds a Keras imported in the meantime."""

    @functools.wraps(enter)
    def prepare_and_enter(tape: Any) -> Any:
        install_optimizers()
        return enter(tape)

    return prepare_and_enter


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
        targets, given = _targets_and_seeds(target, output_gradients)
        call = _begin(targets, sources, current)
        if call is None:
            return gradient(tape, target, sources, output_gradients, *args, **kwargs)
        seeds = call.seeds(_with_ones(targets, given, is_scalable))
        with _differentiating(call):
            result = gradient(tape, target, sources, seeds, *args, **kwargs)
        return _finish(call, result)

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
        install_optimizers()
        targets, given = _targets_and_seeds(ys, grad_ys)
        call = _begin(targets, xs, current)
        if call is None:
            return compute(ys, xs, grad_ys, *args, **kwargs)
        seeds = call.seeds(_with_ones(targets, given, _is_real))
        with _differentiating(call):
            result = compute(ys, xs, seeds, *args, **kwargs)
        return _finish(call, result)

    return private.with_gradients_function(module, scaled_gradients)


def _checking_loop(loop: Callable[..., Any], current: Current) -> Callable[..., Any]:
    """Return `pfor` with the gradients taken in its body checked after it.

    Its body admits neither branches nor assignments.
    """

    @functools.wraps(loop)
    def checked_loop(body: Any, *args: Any, **kwargs: Any) -> Any:
        if _thread.is_differentiating or not current().scales:
            return loop(body, *args, **kwargs)
        if not _is_ordinary(body) or not private.can_merge():
            with _differentiating():
                return loop(body, *args, **kwargs)
        outer = _thread.loop
        call = outer.call if outer else ScaledCall(current())
        result, flags = loop(_with_flags(body, call), *args, **kwargs)
        if not flags:
            return result
        finite = tf.reduce_all(tf.stack([tf.reduce_all(flag) for flag in flags]))
        if outer is None:
            return call.checked_results(result, finite)
        outer.finite.append(finite)
        return result

    return checked_loop


def _with_flags(body: Callable[..., Any], call: ScaledCall) -> Callable[..., Any]:
    """Return a loop's body that tells also whether its gradients are finite."""
    converted = private.converted(body)

    @private.unconverted
    def body_with_flags(index: Any) -> Any:
        with _in_loop(_Loop(call)) as this:
            return converted(index), this.finite

    return body_with_flags


def _is_ordinary(body: Any) -> bool:
    """Tell whether a loop's body is called with an index and nothing else."""
    parameters = inspect.signature(body).parameters
    return inspect.isfunction(body) and "pfor_config" not in parameters


def _begin(targets: Sequence[Any], sources: Any, current: Current) -> ScaledCall | None:
    """Return a call to be scaled; None where gradients are to be left alone."""
    if _thread.is_differentiating or not any(map(is_scalable, targets)):
        return None
    if not all(map(_is_plain, targets)) or not private.can_merge():
        return None
    loss_scale = current()
    if not loss_scale.scales or is_scaled_by_user(targets):
        return None
    return _thread.loop.call if _thread.loop else ScaledCall(loss_scale, sources)


def _finish(call: ScaledCall, gradients: Any) -> Any:
    loop = _thread.loop
    if loop is None:
        return call.results(gradients)

    def unscaled_and_noted(scaled: Sequence[Any]) -> list[Any]:
        unscaled = call.unscaled(scaled)
        loop.finite.append(each_is_finite(unscaled))
        return unscaled

    return map_scalable(unscaled_and_noted, gradients)


def _targets_and_seeds(target: Any, seeds: Any) -> tuple[list[Any], list[Any]]:
    """Return flat targets, and what is given to start from, None where nothing is."""
    targets = tf.nest.flatten(target)
    given = [None] * len(targets) if seeds is None else tf.nest.flatten(seeds)
    return targets, given


def _with_ones(
    targets: Sequence[Any], given: Sequence[Any], starts_at_one: Callable[[Any], bool]
) -> list[Any]:
    """Fill in the ones that gradients start from by default.

    What has no default is left to TensorFlow, with its warnings and errors.
    """
    if len(targets) != len(given):
        return list(given)
    seeds = []
    for target, seed in zip(targets, given, strict=True):
        if seed is not None:
            seeds.append(tf.convert_to_tensor(seed, target.dtype))
        elif starts_at_one(target):
            seeds.append(tf.ones_like(target))
        else:
            seeds.append(None)
    return seeds


def _is_real(target: Any) -> bool:
    return is_scalable(target) and bool(target.dtype.is_floating)


def _is_plain(target: Any) -> bool:
    return isinstance(target, tf.Tensor) and target.dtype not in (
        tf.resource,
        tf.variant,
    )


@contextlib.contextmanager
def _differentiating(call: ScaledCall | None = None) -> Iterator[None]:
    _thread.is_differentiating, _thread.call = True, call
    try:
        yield
    finally:
        _thread.is_differentiating, _thread.call = False, None


@contextlib.contextmanager
def _in_loop(loop: _Loop) -> Iterator[_Loop]:
    outer, _thread.loop = _thread.loop, loop
    try:
        yield loop
    finally:
        _thread.loop = outer
