"""TensorFlow's private names of old branches and loops, which are parts of one graph.

As in `_tensorflow_private`: where a name is gone, one warning says what is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tf_amp._tensorflow_private import warn_once


def frames_of(operation: Any) -> tuple[Any, ...]:
    """Return the branches and loops that hold an operation or graph, innermost first.

    Those that hold a graph are the ones that are being built.
    """
    look_up = getattr(operation, "_get_control_flow_context", None)
    if look_up is None:
        warn_once(
            "_get_control_flow_context", "gradients taken in old branches stop training"
        )
        return ()
    frames, frame = [], look_up()
    while frame is not None:
        frames.append(frame)
        frame = frame.outer_context
    return tuple(f for f in frames if f.IsCondContext() or f.IsWhileContext())


def true_unless_taken(flag: Any, branch: Any) -> Any | None:
    """Return a flag of a branch as it is around it: True where it is not taken.

    None of what is in a loop.
    """
    import tensorflow as tf

    if not branch.IsCondContext():
        return None
    with _around(branch, flag.graph):
        both = tf.raw_ops.Switch(data=tf.constant(True), pred=branch.pred)
        return tf.raw_ops.Merge(inputs=[flag, both[1 - branch.branch]]).output


@contextlib.contextmanager
def _around(frame: Any, graph: Any) -> Iterator[None]:
    import tensorflow as tf

    with graph.as_default(), tf.control_dependencies(None):
        outer = frame.outer_context
        if outer is None:
            yield
            return
        outer.Enter()
        try:
            yield
        finally:
            outer.Exit()
