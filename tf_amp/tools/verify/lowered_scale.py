"""Let a loss scale come down as training would, before gradients are compared.

A dynamic scale begins where the first steps overflow, by design: these are skipped. Not
they are compared, but the first step that counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from tf_amp.tools.graph_runs.cases import Case, Values
from tf_amp.tools.graph_runs.differences import Array
from tf_amp.tools.graph_runs.executing import run
from tf_amp.tools.verify.verification import GRADIENT
from tf_amp.training.loss_scale.scale_state import PREFIX as LOSS_SCALE

# In the name of a loss scale that stays what it is.
_STATIC = "Static"
# Of the floats of a state the scale comes first.
_PLACE = 0


def with_lowered_scale(case: Case, graph_def: GraphDef, values: Values) -> Values:
    """Return values with a loss scale at which the gradients of a graph are finite.

    Where none is found, or losses are not scaled, the values are those given. The graph
    is the case's in mixed precision.
    """
    tried, names = dict(values), _scales(case, values)
    while names:
        if _are_finite(case, run(case, graph_def, tried)):
            return tried
        if all(tried[name][_PLACE] <= 1.0 for name in names):
            break
        tried |= {name: _halved(tried[name]) for name in names}
    return values


def _scales(case: Case, values: Values) -> list[str]:
    """Return the variables that hold scales which may change."""
    return [
        handle
        for handle, name in case.variables.items()
        if LOSS_SCALE in name and _STATIC not in name and _is_floats(values.get(handle))
    ]


def _is_floats(value: Array | None) -> bool:
    return value is not None and value.dtype.kind == "f" and value.ndim == 1


def _halved(floats: Array) -> Array:
    halved: Array = floats.copy()
    halved[_PLACE] /= 2.0
    return halved


def _are_finite(case: Case, tensors: Values) -> bool:
    gradients: Iterable[str] = (w.name for w in case.watched if w.kind == GRADIENT)
    return all(
        bool(np.isfinite(tensors[name]).all()) for name in gradients if name in tensors
    )
