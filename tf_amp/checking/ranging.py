"""Run a graph on batches of data and see what ranges its tensors keep to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tf_amp.checking.ranges import Ranges


def ranges_of(
    function: Any, batches: Iterable[Any], *, fetches: Iterable[str] = ()
) -> Ranges:
    """Return the ranges of a graph's float32 tensors over all batches.

    The graph runs in float32, apart from its program: functions are inlined, variables
    have the values they have now, and nothing outside is touched.

    Args:
      function: a ConcreteFunction (a signature of a SavedModel), or a GraphDef.
      batches: each a mapping from names of inputs to arrays, a sequence of arrays by
        position, or one array; names are those of `specs_of(function)`, and for a
        GraphDef those of its placeholders.
      fetches: names of the nodes to run, for a GraphDef.

    Raises:
      DataUnfit: a batch does not fit; the message names it and what is expected.
      NotMeasurable: the graph cannot be run apart; the message says why.
    """
    raise NotImplementedError
