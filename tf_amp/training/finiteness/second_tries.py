"""Gradients that a program uses itself, taken again where they overflowed.

No optimizer skips a step for them: a sampler, a saliency map or whoever fetches them
would go on with infinities until the scale has fallen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grappler_pass.annotations import AGAIN

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from tf_amp.rewriting.arriving_graphs import Arrival

_AGAIN = AGAIN.encode()


def added(arrival: Arrival) -> GraphDef | None:
    """Return a graph with a second try; None for the same."""
    if _AGAIN not in arrival.data:
        return None
    from grappler_pass.rewriting.second_try import with_second_tries

    return with_second_tries(arrival.running)
