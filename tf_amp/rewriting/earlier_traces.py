"""What was traced before mixed precision was on, and so is not rewritten.

TensorFlow optimizes a function, and what a Session runs, at the first call. What was
called before never arrives, so that its next call is looked at.
"""

from __future__ import annotations

from typing import Any

from grappler_pass.annotations import STAMP
from grappler_pass.graph.op_table import PRODUCT_OPS
from tf_amp._tensorflow_private.functions import definitions
from tf_amp._tensorflow_private.tracing import attribute_of
from tf_amp.message_codes import Code
from tf_amp.rewriting import host, notices, unseen
from tf_amp.tracing import bypass, graph_names, in_force

_EARLIER = (
    "enable it before the first call, or afterwards make the function anew "
    "(of a Keras model: compile it again)"
)
_EARLIER_SESSION = "enable it before the Session is made, or make another"


def mention_function(context: Any, name: bytes) -> None:
    """Say so of a function that is called, unless it was traced in time."""
    if _is_wanted() and _is_early(context, name):
        notices.announce_earlier_trace(
            graph_names.name_of_call(name.decode()), _EARLIER
        )


def mention_run(session: Any) -> None:
    """Say so of a graph that is run, unless its Session was made in time."""
    ops = session.graph.get_operations()
    products = [op for op in ops if op.type in PRODUCT_OPS]
    if products:
        unseen.note_products()
        is_early = all(attribute_of(op, STAMP) is None for op in products)
        if is_early and _is_wanted():
            notices.announce_earlier_trace(graph_names.SESSION, _EARLIER_SESSION)


def _is_wanted() -> bool:
    if bypass.leaves_graphs_alone() or Code.TRACED_BEFORE in host.current().said:
        return False
    config = in_force.current_config()
    return config is not None and config.rewrites and config.verbose


def _is_early(context: Any, name: bytes) -> bool:
    """Return whether a function, or one that it calls, has products, and no stamps."""
    has_products = False
    for definition in definitions(context, name):
        if any(STAMP in node.attr for node in definition.node_def):
            return False
        has_products |= any(node.op in PRODUCT_OPS for node in definition.node_def)
    return has_products
