"""Gradients that a program uses itself, taken again where they overflowed.

No optimizer skips a step for them: a sampler, a saliency map or whoever fetches them
would go on with infinities until the scale has fallen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grappler_pass.annotations import AGAIN

if TYPE_CHECKING:
    from grappler_pass.graph.view import Item

_AGAIN = AGAIN.encode()


def added(given: bytes, running: bytes, item: Callable[[], Item]) -> bytes | None:
    """Return a serialized GraphDef with a second try; None for the same.

    Args:
      given: as TensorFlow has passed it.
      running: as it is to run by now.
      item: returns what TensorFlow relies on.
    """
    if _AGAIN not in running:
        return None
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.rewriting.second_try.taking import with_second_tries

    changed = with_second_tries(GraphDef.FromString(running))
    return None if changed is None else bytes(changed.SerializeToString())
