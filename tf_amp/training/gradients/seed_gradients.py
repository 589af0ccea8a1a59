"""What gradients are taken of, and what they start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp.message_codes import Code


def targets_and_seeds(target: Any, seeds: Any) -> tuple[list[Any], list[Any]]:
    """Return flat targets, and what is given to start from, None where nothing is.

    Composite targets are split as TensorFlow does; variables stay what they are.
    """
    targets = private.differentiated_parts(tf.nest.flatten(target))
    if seeds is None:
        return targets, [None] * len(targets)
    return targets, private.differentiated_parts(tf.nest.flatten(seeds))


def with_ones(
    targets: Sequence[Any], given: Sequence[Any], starts_at_one: Callable[[Any], bool]
) -> list[Any]:
    """Fill in the ones that gradients start from by default.

    What has no default is left to TensorFlow, with its warnings and errors.
    """
    seeds = []
    for target, seed in zip(targets, given, strict=True):
        if isinstance(seed, tf.IndexedSlices):
            seeds.append(seed)
        elif seed is not None:
            seeds.append(tf.convert_to_tensor(seed, dtype_of(target)))
        elif starts_at_one(target):
            # Those of a watched target would be watched, too.
            seeds.append(tf.stop_gradient(tf.ones_like(target)))
        else:
            seeds.append(None)
    return seeds


def dtype_of(target: Any) -> Any:
    """Return the type of a tensor or variable, of Keras' own too."""
    return tf.as_dtype(target.dtype).base_dtype


def has_gradient(target: Any) -> bool:
    """Say whether a target is a tensor or variable that a loss scale can multiply."""
    if not isinstance(target, tf.Tensor) and not _is_variable(target):
        return False
    return bool(dtype_of(target).is_floating or dtype_of(target).is_complex)


def is_number(target: Any) -> bool:
    """Return whether a tape starts from ones of a target, as of whole numbers too."""
    if has_gradient(target):
        return True
    return isinstance(target, tf.Tensor) and target.dtype.is_integer


def is_real(target: Any) -> bool:
    """Return whether a target has gradients that are not complex."""
    return has_gradient(target) and bool(dtype_of(target).is_floating)


def are_known(targets: Sequence[Any]) -> bool:
    """Return whether it is known what all targets start from; if not, say it once."""
    unknown = [target for target in targets if not _is_known(target)]
    if unknown:
        Code.NOT_SCALED.warn_once(
            "Losses are not scaled, and gradients not checked, where gradients are "
            "taken of %r: give tf.Tensors or tf.Variables to start from.",
            unknown[0],
        )
    return not unknown


def _is_known(target: Any) -> bool:
    if isinstance(target, tf.Tensor):
        return target.dtype not in (tf.resource, tf.variant)
    return _is_variable(target)


def _is_variable(target: Any) -> bool:
    # Those of Keras and of strategies are no tf.Variable.
    return isinstance(target, tf.Variable) or hasattr(target, "handle")
