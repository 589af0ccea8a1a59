"""What is said of an overflow: where in the user's program it began."""

from __future__ import annotations

from typing import Any, NamedTuple

from grappler_pass.eligibility.exclusions import differentiated, without_call_scopes
from tf_amp.message_codes import Code
from tf_amp.report.counts import ordinal
from tf_amp.tracing.stamp_reader import forward_names


class OverflowOrigin(NamedTuple):
    """The first operation, in the order of execution, with a value that is not finite.

    Attributes:
      op: its name.
      kind: what it computes, such as "MatMul".
      layer: the name scope around it, which Keras makes of its layers' names; of a
        gradient, that of the operation it belongs to.
      dtype: that could not hold the value.
      is_gradient: whether it belongs to the backward pass, where a smaller loss scale
        helps.
    """

    op: str
    kind: str
    layer: str
    dtype: str
    is_gradient: bool = False

    def __str__(self) -> str:
        """Return one line for the log."""
        where = f" in {self.layer}" if self.layer else ""
        what = "gradient" if self.is_gradient else "forward pass"
        return f"{self.op} ({self.kind}, {self.dtype}){where}, {what}"


def origin_from(found: Any) -> OverflowOrigin:
    """Say where a node of a rewritten graph stands in the user's program.

    Args:
      found: as `overflow.search` finds it.
    """
    node = found.node
    if found.is_scale:
        return OverflowOrigin("the loss scale", node.op, "", found.dtype, True)
    name = without_call_scopes(node.name)
    forward_ops = forward_names(node)
    forward = (forward_ops or (differentiated(name) or name,))[-1]
    layer = forward.rpartition("/")[0]
    return OverflowOrigin(name, node.op, layer, found.dtype, found.is_gradient)


def outcome_of(running: bytes, overflows: int, is_gradient: bool) -> str:
    """Say what became of a step that overflowed.

    Args:
      running: the graph that it ran, serialized.
      overflows: how many it has had by then.
      is_gradient: whether the overflow began in the backward pass.
    """
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.rewriting.second_try import skips, tries_again

    nodes = GraphDef.FromString(running).node
    if skips(nodes):
        return f"this step was skipped, the {ordinal(overflows)} so far"
    if not tries_again(nodes):
        return (
            "the gradients are handed on as they are; an optimizer that applies them "
            "skips its step"
        )
    if is_gradient:
        return "the gradients were taken again without the loss scale"
    return "the gradients are used as they are, since no loss scale helps"


def warn_of_overflow(scale: float) -> None:
    """Say once that gradients are not finite, unless an optimizer is in use.

    Args:
      scale: of the loss when they overflowed.
    """
    from tf_amp.training.optimizers.skipping import have_applied

    if have_applied():
        return
    Code.OVERFLOW.warn_once(
        "Gradients overflowed at loss scale %g: the next are scaled lower. "
        "Optimizers, and assignments to variables, skip such a step; "
        "tf_amp.loss_scale_state() counts them. A tf.function or graph with neither "
        "takes its gradients again without a loss scale. Elsewhere some are infinite "
        'or NaN, and loss_scale="none" scales nothing.',
        scale,
    )
