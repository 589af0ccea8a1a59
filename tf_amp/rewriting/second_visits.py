"""Know a graph that Grappler brings a second time, right after the first.

Its meta optimizer goes over each graph twice, on one thread. What has stayed float32
at the first visit does so at the second, when a few nodes more are folded or fused: it
need not be planned again. Two graphs differ in the traces that their operations are
stamped with, in what asks for 16 bits in them, or in what is fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from grappler_pass.annotations import STAMP
from tf_amp.compare.fingerprint import digest_of_products

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


# What has stayed float32 last, and was visited once: `key`, if there is any.
_thread = threading.local()


def key_of(graph_def: GraphDef, fetch: Sequence[str], instance: Hashable) -> Hashable:
    """Return what is alike in both visits of a graph, and of an instance of it."""
    stamps = {n.attr[STAMP].s for n in graph_def.node if STAMP in n.attr}
    return digest_of_products(graph_def, {}), frozenset(stamps), tuple(fetch), instance


def note_float32(key: Hashable) -> None:
    """Remember until this thread's next visit what stays float32; None: nothing."""
    _thread.key = key


def has_stayed_float32(key: Hashable) -> bool:
    """Return whether this is the second visit of a graph that has stayed float32."""
    last, _thread.key = getattr(_thread, "key", None), None
    return key == last
