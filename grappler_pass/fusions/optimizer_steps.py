"""What is saved where a graph arrives with updates of weights in one kernel each.

They were traced so, for want of a way to tell afterwards which operations of a graph
are an optimizer's: `tf_amp.training.optimizers.fused_steps` says how.
"""

from __future__ import annotations

from grappler_pass.annotations import FUSED
from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.fusions import OPTIMIZER_STEPS
from grappler_pass.graph.shapes import Shapes, known_shape
from grappler_pass.graph.view import GraphView, Node, device_type_of
from grappler_pass.planning.plan import Fusion
from grappler_pass.pricing.seconds import ADDED_NODE_SECONDS, Models

# Element-wise operations that Keras 3 writes in place of a kernel, assignments among
# them; each reads two tensors of the weight's size, or one, and writes one.
_OPERATIONS = {
    "ResourceApplyGradientDescent": 2,
    "ResourceApplyKerasMomentum": 5,
    "ResourceApplyAdam": 12,
    "ResourceApplyAdamWithAmsgrad": 14,
    "ResourceApplyAdaMax": 11,
    "ResourceApplyRMSProp": 12,
    "ResourceApplyCenteredRMSProp": 18,
    "ResourceApplyAdadelta": 17,
    "ResourceApplyFtrlV2": 20,
}


def steps_in(view: GraphView, shapes: Shapes, models: Models) -> tuple[Fusion, ...]:
    """Return the kernels of a graph that take the place of what Keras writes."""
    return tuple(
        Fusion(OPTIMIZER_STEPS, node.name, _seconds(node, view, shapes, models))
        for node in view.nodes
        if FUSED in node.proto.attr
    )


def _seconds(node: Node, view: GraphView, shapes: Shapes, models: Models) -> float:
    """Return what a kernel saves per step, as it is predicted."""
    model = models.get(device_type_of(node.device)) or models["CPU"]
    # The largest input is the gradient; all else are handles and scalars.
    known = (known_shape(shapes, view, port) for port in node.inputs)
    shape = max((s for s in known if s), key=len, default=None)
    if shape is None:
        return 0.0
    whole = TensorSpec(shape, "float32")
    written = model.price(OpCall("Mul", {}, (whole, whole), (whole,)), "float32")
    kernel = model.price(OpCall(node.op, {}, (whole,), ()), "float32")
    count = _OPERATIONS.get(node.op, 1)
    saved = count * written.seconds + (count - 1) * ADDED_NODE_SECONDS
    return view.weight(node.index) * (saved - kernel.seconds)
