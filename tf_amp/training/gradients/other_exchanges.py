"""Exchanges of gradients between processes that TensorFlow does not know of.

There an overflow on one rank cannot be agreed on with the others: each would skip other
steps, and have another scale, so that their weights would part.
"""

from __future__ import annotations

import sys
from typing import Any

from tf_amp.message_codes import Code

_LIBRARIES = ("horovod.tensorflow", "byteps.tensorflow")


def is_scaling_forbidden() -> bool:
    """Return whether ranks would part if losses were scaled; if so, say it once."""
    library = next(filter(_has_ranks, _LIBRARIES), None)
    if library is None:
        return False
    Code.NOT_SCALED.warn_once(
        "Gradients are exchanged by %s, where ranks cannot agree on a loss scale: "
        "losses are not scaled. Take bfloat16, which needs no scaling; or float16 "
        "with a strategy of TensorFlow's own, such as MultiWorkerMirroredStrategy.",
        library.partition(".")[0],
    )
    return True


def _has_ranks(library: str) -> bool:
    """Say whether a library exchanges with others; it does not before it has begun."""
    module: Any = sys.modules.get(library)
    if module is None:
        return False
    try:
        return int(module.size()) > 1
    except (AttributeError, ValueError):
        return False
