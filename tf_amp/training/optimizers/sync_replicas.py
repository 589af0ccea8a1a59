"""Steps of one worker that overflow under a `SyncReplicasOptimizer`.

Each worker pushes its gradients to accumulators, and then waits for a token, which it
gets once enough gradients of this step are there and have been applied. A worker whose
gradients overflow must not push. But did it wait all the same, all would: nobody fills
its place. So it puts a token for the present step back into the queue, to be had by
whoever waits first, and this one computes gradients for the step once more.

Nothing is branched on: accumulators drop the gradients of a step gone by, which is what
an overflowing worker says of its own, and a queue takes none of no tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import install as install_hook
from tf_amp._tensorflow_private import stand_in_for, wrapping_unconverted
from tf_amp._tensorflow_private import workers as private
from tf_amp.tracing.bypass import holding
from tf_amp.training.optimizers.finite_steps import finite_step

# Of a step before all others.
_GONE_BY = -1


# Whether the gradients that a worker is about to push are finite, a bool scalar, and
# the `SyncReplicasOptimizer` that they are for.
_push: ContextVar[tuple[Any, Any] | None] = ContextVar("tf_amp_push", default=None)


def install() -> None:
    """Decorate where a `SyncReplicasOptimizer` pushes, and where it waits."""
    if install_hook(private.SYNC_PARTS, _with_guarded_parts):
        install_hook(private.SYNC_APPLY, _note_overflow)


@wrapping_unconverted
def _note_overflow(
    apply: Callable[..., Any],
    optimizer: Any,
    grads_and_vars: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    pairs = list(grads_and_vars)
    finite = finite_step([g for g, _ in pairs], [v for _, v in pairs])
    push = (finite, optimizer) if isinstance(finite, tf.Tensor) else None
    with holding(_push, push):
        return apply(optimizer, pairs, *args, **kwargs)


def _with_guarded_parts(module: Any) -> Any:
    """Return `data_flow_ops` with accumulators and a queue that look at the push."""

    class DenseAccumulator(module.ConditionalAccumulator):  # type: ignore[misc]
        def apply_grad(self, grad: Any, local_step: Any = 0, name: Any = None) -> Any:
            return super().apply_grad(grad, _unless_overflowed(local_step), name)

    class SparseAccumulator(module.SparseConditionalAccumulator):  # type: ignore[misc]
        def apply_grad(
            self,
            grad_indices: Any,
            grad_values: Any,
            grad_shape: Any = None,
            local_step: Any = 0,
            name: Any = None,
        ) -> Any:
            step = _unless_overflowed(local_step)
            return super().apply_grad(grad_indices, grad_values, grad_shape, step, name)

    class TokenQueue(module.FIFOQueue):  # type: ignore[misc]
        def dequeue(self, name: Any = None) -> Any:
            with tf.control_dependencies(_put_back(self)):
                return super().dequeue(name)

    return stand_in_for(
        module,
        ConditionalAccumulator=DenseAccumulator,
        SparseConditionalAccumulator=SparseAccumulator,
        FIFOQueue=TokenQueue,
    )


def _unless_overflowed(local_step: Any) -> Any:
    """Return the step that gradients are said to be of."""
    push = _push.get()
    if push is None:
        return local_step
    finite, _ = push
    step = tf.cast(local_step, tf.int64)
    return tf.where(finite, step, tf.constant(_GONE_BY, tf.int64))


def _put_back(queue: Any) -> list[Any]:
    """Return what puts a token back where gradients overflowed."""
    finite, optimizer = _push.get() or (None, None)
    step = None if optimizer is None else private.local_step_of(optimizer)
    if step is None:
        return []
    count = 1 - tf.cast(finite, tf.int32)
    return [queue.enqueue_many((tf.fill([count], tf.identity(step)),))]
