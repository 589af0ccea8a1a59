"""Let a loss scale come down as training would, before gradients are compared.

A dynamic scale begins where the first steps overflow, by design: these are skipped. Not
they are compared, but the first step that counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tf_amp.checking.cases import Case, Values
from tf_amp.checking.differences import Array
from tf_amp.checking.executing import state_after
from tf_amp.loss_scaling.protocol import COUNTERS

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

# In the names of a loss scale's variables.
_SCALE = "tf_amp_loss_scale"
# From the highest float32 down to a scale of 1.
_MOST_STEPS = 40
_COUNTERS = [name for name, value in COUNTERS.items() if isinstance(value, int)]
_SKIPPED = _COUNTERS.index("skipped_steps")


def with_settled_scale(case: Case, graph_def: GraphDef, values: Values) -> Values:
    """Return values with a loss scale at which a step of a graph is not skipped.

    Where none is found, or losses are not scaled, the values are those given.

    Args:
      case: what the graph was rewritten from.
      graph_def: the graph in mixed precision.
      values: for everything that comes in.

    Raises:
      NotMeasurable: the graph cannot be run apart; the message says why.
    """
    names = [
        handle
        for handle, name in case.variables.items()
        if _SCALE in name and handle in values
    ]
    counters = [name for name in names if values[name].dtype.kind == "i"]
    tried = dict(values)
    for _ in range(_MOST_STEPS if counters else 0):
        after = state_after(case, graph_def, tried, names)
        if not _has_skipped(tried, after, counters):
            return tried
        tried |= after
    return values


def _has_skipped(before: Values, after: Values, counters: list[str]) -> bool:
    skipped: list[Array] = [after[n] - before[n] for n in counters]
    return any(bool(np.any(counts[_SKIPPED : _SKIPPED + 1])) for counts in skipped)
