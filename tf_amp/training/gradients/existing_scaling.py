"""Whether losses must not be scaled, for what the user's program does itself.

Loss scale optimizers of Keras and TensorFlow scale them, and are known by what their
scaling functions return. A policy scales nothing: mixed_float16 lets `compile` put such
an optimizer around the model's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import tracing, wrapping_unconverted
from tf_amp.message_codes import Code
from tf_amp.training.finiteness import votes

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
    is_scaled = _is_noted(list(targets))
    if is_scaled:
        Code.SCALED_ALREADY.warn_once(
            "Losses are scaled by an optimizer of the program: their scaling is left "
            "to it."
        )
    return is_scaled


def is_scaling_forbidden() -> bool:
    """Return whether ranks would part if losses were scaled; if so, say it once.

    Where processes exchange gradients in a way that TensorFlow does not know of, an
    overflow on one cannot be agreed on with the others: each would skip other steps,
    and have another scale.
    """
    library = next(filter(_has_ranks, _EXCHANGES), None)
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


def _is_noted(targets: list[Any]) -> bool:
    if any(map(_has_note, targets)):
        return True
    around = tracing.outwards(tf.compat.v1.get_default_graph())
    return any(map(_has_note, around)) and votes.descends_from(targets, _has_note)


def _has_note(tensor_or_graph: Any) -> bool:
    return hasattr(tensor_or_graph, _SCALED)


def _has_ranks(library: str) -> bool:
    """Say whether a library exchanges with others; it does not before it has begun."""
    module: Any = sys.modules.get(library)
    if module is None:
        return False
    try:
        return int(module.size()) > 1
    except (AttributeError, ValueError):
        return False
