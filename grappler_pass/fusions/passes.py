"""What operations next to each other are, and what each pass over a tensor takes."""

from __future__ import annotations

from grappler_pass.costs import CostModel, OpCall, TensorSpec
from grappler_pass.graph.shapes import Shape
from grappler_pass.graph.view import GraphView, Node, Port, device_type_of
from grappler_pass.pricing.seconds import NODE_SECONDS, Models


def model_of(models: Models, node: Node) -> CostModel:
    """Return the cost model of a node's device."""
    return models.get(device_type_of(node.device)) or models["CPU"]


def pass_seconds(
    model: CostModel, op: str, shape: Shape | None, other: Shape | None = None
) -> float:
    """Return what a float32 operation on a tensor, and on another one, takes."""
    whole = TensorSpec(shape, "float32")
    operand = TensorSpec(shape if other is None else other, "float32")
    call = OpCall(op, {}, (whole, operand), (whole,))
    return model.price(call, "float32").seconds + NODE_SECONDS


def untouchable_names(view: GraphView) -> frozenset[str]:
    """Return the nodes that belong to the caller, or that the user excludes."""
    return view.item.untouchable | {name for name, _ in view.item.excluded}


def readers_of(view: GraphView, node: Node) -> tuple[int, ...]:
    """Return the nodes that read a node, each once."""
    ports = view.output_ports(node.index)
    return tuple(dict.fromkeys(r.node for p in ports for r in view.readers(p)))


def only_reader(view: GraphView, node: Node) -> Node | None:
    """Return what alone reads a node, if nothing waits for it."""
    readers = readers_of(view, node)
    if len(readers) != 1 or view.control_readers(node.index):
        return None
    return view.nodes[readers[0]]


def other_operand(node: Node, operand: Node) -> Port | None:
    """Return what a node reads beside the result of another; None if no more."""
    others = [port for port in node.inputs if port.node != operand.index]
    return others[0] if len(others) == len(node.inputs) - 1 == 1 else None
