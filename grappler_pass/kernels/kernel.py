"""One op in 16 bits, with all that decides which code of TensorFlow computes it."""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple, Protocol

from google.protobuf import text_format
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import tensor_util

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.graph.fusions import root_of
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, static
from grappler_pass.graph.type_slots import DTYPE_NAMES, FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node, Port

# Stands for a batch whose size the graph leaves open.
OPEN_BATCH = 32
# How attributes begin that are no part of what a node computes.
_PRIVATE = "_"


class Operand(NamedTuple):
    """An input of a kernel.

    Attributes:
      dtype: in the float32 program, as a DataType enum.
      shape: None, or sizes that are None, where they are not known.
      values: of a small operand that says what to compute, such as sizes; flat.
      is_low: whether it is in 16 bits.
    """

    dtype: int
    shape: Shape | None
    values: tuple[int, ...] | None = None
    is_low: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """One op in 16 bits.

    Attributes:
      proto: the node in float32; inputs are named by position.
      device_type: where it runs: "CPU" or "GPU".
      low_dtype: DataType enum.
      low_slots: its types that are in 16 bits: attributes, and positions in lists.
      operands: its data inputs.
      results: shapes of its outputs.
      product_alone: whether what is fused behind the product stays float32.
    """

    proto: NodeDef
    device_type: str
    low_dtype: int
    low_slots: tuple[tuple[str, int], ...]
    operands: tuple[Operand, ...]
    results: tuple[Shape | None, ...]
    product_alone: bool

    @property
    def op(self) -> str:
        """The op that the node begins with: of a fused one that of its product."""
        return root_of(self.proto.op) or str(self.proto.op)

    @cached_attribute
    def key(self) -> str:
        """Everything that decides what runs on one machine, as JSON on one line."""
        attrs = {
            name: text_format.MessageToString(value, as_one_line=True).strip()
            for name, value in self.proto.attr.items()
        }
        fields = {
            "op": self.proto.op,
            "attrs": attrs,
            "type": types_pb2.DataType.Name(self.low_dtype),
            "low": [list(slot) for slot in self.low_slots],
            "operands": [[o.dtype, o.shape, o.values] for o in self.operands],
            "alone": self.product_alone,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @property
    def is_whole(self) -> bool:
        """Whether nothing that it takes to run is left open."""
        return all(_is_known(operand) for operand in self.operands) and all(
            shape is not None and None not in shape for shape in self.results
        )


def described(key: str) -> str:
    """Return a kernel's key as people read it: op, type and shapes.

    What is no key, of a file that somebody has changed, is returned as it is.
    """
    try:
        fields = json.loads(key)
        shapes = [o[2] if o[1] is None else o[1] for o in fields["operands"]]
        texts = " and ".join("x".join(map(str, shape)) for shape in shapes if shape)
        low_dtype = types_pb2.DataType.Value(fields["type"])
        return f"{fields['op']} in {DTYPE_NAMES[low_dtype]} of {texts}"
    except (ValueError, TypeError, LookupError, RecursionError):
        return key


class Kernels(Protocol):
    """What is known of the kernels of the devices that are planned for."""

    def fault(self, kernel: Kernel, *, compiled: bool) -> str:
        """Return why a kernel may not be used; "" where nothing is known against it.

        `compiled` says that XLA compiles the graph.
        """

    def check(self, kernels: list[Kernel]) -> bool:
        """Run those of which nothing is known; return whether any is wrong."""

    def unchecked(self, kernels: list[Kernel]) -> str:
        """Say of how many nothing is known; "" of none."""


def kernel_of(
    view: GraphView, slots: SlotTable, shapes: Shapes, node: Node, low_dtype: int
) -> Kernel:
    """Return the kernel that computes a node once its float32 types are in 16 bits.

    A batch of unknown size counts as `OPEN_BATCH`.
    """
    alone = slots.has_float32_results(node.index)
    own = [s for s in slots.slots_of[node.index] if slots.dtypes[s] == FLOAT32]
    own = own[:1] if alone else own
    results = shapes.get(node.name, ())
    return Kernel(
        proto=_plain(node),
        device_type=node.device_type,
        low_dtype=low_dtype,
        low_slots=tuple((slots.slots[s].attr, slots.slots[s].index) for s in own),
        operands=tuple(
            _operand(view, slots, shapes, node, position)
            for position in range(len(node.inputs))
        ),
        results=tuple(map(_with_batch, results)) or (None,),
        product_alone=alone,
    )


def _plain(node: Node) -> NodeDef:
    """Return a node without its name, its device and what only its graph knows."""
    inputs = map(str, range(len(node.inputs)))
    plain = NodeDef(name="kernel", op=node.op, input=inputs)
    for name, value in node.proto.attr.items():
        if not name.startswith(_PRIVATE):
            plain.attr[name].CopyFrom(value)
    return plain


def _operand(
    view: GraphView, slots: SlotTable, shapes: Shapes, node: Node, position: int
) -> Operand:
    port = node.inputs[position]
    dtype = slots.input_dtype(node.index, position)
    shape = known_shape(shapes, view, port)
    if dtype == types_pb2.DT_INT32:
        return Operand(dtype, shape, _values(view, shapes, node, port))
    is_low = dtype == FLOAT32 and slots.input_slot(node.index, position) != NO_SLOT
    return Operand(dtype, _with_batch(shape), None, is_low)


def _values(
    view: GraphView, shapes: Shapes, node: Node, port: Port
) -> tuple[int, ...] | None:
    """Return sizes that a node is given; of a gradient they are those of its result."""
    source = view.nodes[port.node].proto
    if source.op == "Const":
        values = tensor_util.MakeNdarray(source.attr["value"].tensor)
        return tuple(int(value) for value in values.flat)
    result = (shapes.get(node.name, ()) or (None,))[0]
    sizes = _with_batch(result) if "Backprop" in node.op else None
    return static(sizes)


def _with_batch(shape: Shape | None) -> Shape | None:
    return (OPEN_BATCH, *shape[1:]) if shape and shape[0] is None else shape


def _is_known(operand: Operand) -> bool:
    if operand.dtype == types_pb2.DT_INT32:
        return operand.values is not None
    return operand.shape is not None and None not in operand.shape
