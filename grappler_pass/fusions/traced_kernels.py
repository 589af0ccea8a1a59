"""What is saved where a graph arrives with less than what Keras 3 writes.

It was traced so, for want of a way to tell afterwards which operations of a graph are
an optimizer's, or a normalization's: `optimizer_fusions` and `layer_fusions` of
`tf_amp.training` say how.
"""

from __future__ import annotations

from grappler_pass.annotations import FUSED
from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.eligibility.reads import (
    variable_of,
    variables_updated_by_rows,
)
from grappler_pass.fusions import GAINS
from grappler_pass.fusions.passes import PricedGraph
from grappler_pass.graph.shapes import variable_shape
from grappler_pass.graph.view import Node
from grappler_pass.planning.plan import Cause, Fusion, Reason
from grappler_pass.planning.prices import NODE_SECONDS

# Element-wise operations and reductions of a kernel's largest operand that Keras writes
# in its place, counted in the graphs of Keras 3.15; gradients among them.
_OPERATIONS = {
    "FusedBatchNormV3": 17,
    # By GELU's derivative; with erf there are four more.
    "Mul": 2,
    "ResourceApplyGradientDescent": 2,
    "ResourceApplyKerasMomentum": 5,
    "ResourceApplyAdam": 12,
    "ResourceApplyAdamWithAmsgrad": 14,
    "ResourceApplyAdaMax": 11,
    "ResourceApplyRMSProp": 12,
    "ResourceApplyCenteredRMSProp": 18,
    "ResourceApplyAdadelta": 17,
    "ResourceApplyAdagradV2": 7,
    "ResourceApplyFtrlV2": 20,
}
_GRADIENTS = {"FusedBatchNormV3": "FusedBatchNormGradV3"}


def traced_kernels(graph: PricedGraph) -> tuple[Fusion, ...]:
    """Return the kernels of a graph that take the place of what Keras writes."""
    view = graph.view
    marked = [node for node in view.nodes if FUSED in node.proto.attr]
    updated = variables_updated_by_rows(view) if marked else frozenset()

    def seconds(node: Node) -> float:
        if node.op != "ResourceGather":
            return _seconds(node, graph)
        is_updated = variable_of(view, node.inputs[0]) in updated
        return _copy_seconds(node, graph) if is_updated else 0.0

    def fusion(node: Node) -> Fusion:
        rule = node.proto.attr[FUSED].s.decode()
        return Fusion(rule, node.name, seconds(node), Reason(Cause.TRACED, GAINS[rule]))

    return tuple(map(fusion, marked))


def _copy_seconds(node: Node, graph: PricedGraph) -> float:
    """Return what copying the variable takes that rows are read from."""
    shape = variable_shape(graph.view.nodes[node.inputs[0].node].proto)
    whole = (TensorSpec(shape, "float32"),)
    copy = OpCall("DeepCopy", {}, whole, whole)
    seconds = graph.model(node).price(copy, "float32").seconds
    return graph.view.weight(node.index) * seconds


def _seconds(node: Node, graph: PricedGraph) -> float:
    """Return what a kernel saves per step, as it is predicted."""
    # All else are handles, scalars and vectors of channels.
    known = map(graph.shape, node.inputs)
    shape = max((s for s in known if s), key=len, default=None)
    if shape is None:
        return 0.0
    whole = TensorSpec(shape, "float32")

    def seconds(op: str, outputs: tuple[TensorSpec, ...]) -> float:
        call = OpCall(op, {}, (whole, whole), outputs)
        return graph.model(node).price(call, "float32").seconds + NODE_SECONDS

    gradient = _GRADIENTS.get(node.op)
    outputs = (whole,) if gradient else ()
    spent = sum(seconds(op, outputs) for op in filter(None, [node.op, gradient]))
    written = _OPERATIONS.get(node.op, 1) * graph.pass_seconds(node, "Mul", shape)
    return graph.view.weight(node.index) * (written - spent)
