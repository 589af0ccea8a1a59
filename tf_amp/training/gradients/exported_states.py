"""Loss scales' states that go into a SavedModel, with the functions that use them.

A function that was traced while losses were scaled goes on scaling them elsewhere. Its
state begins there as it is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import graphs
from tf_amp.training.finiteness import scale_at_run_time
from tf_amp.training.finiteness.tallies import tallies_beside
from tf_amp.training.loss_scale.variables import eager_states

_CHILD = "tf_amp_state"


def track_states(result: Any, view: Any, *args: Any, **kwargs: Any) -> None:
    """Add states to the functions of a SavedModel, once these are named."""
    captured = {id(tensor) for tensor in graphs.captured_inputs(view)}
    used = [v for v in _own_variables() if not captured.isdisjoint(_handles(v))]
    if used:
        child = tf.Module()
        child.variables_of_functions = used
        graphs.add_child(view, _CHILD, child)


def _own_variables() -> Iterator[Any]:
    """Yield what functions that scale losses may read and write."""
    yield from scale_at_run_time.own_variables()
    for state in eager_states():
        yield from state.variables_by_kind.values()
        yield from (t.variable for t in tallies_beside(state) if not t.is_of_replica)


def _handles(variable: Any) -> set[int]:
    copies = getattr(variable, "values", None) or (variable,)
    return {id(one.handle) for one in copies if hasattr(one, "handle")}
