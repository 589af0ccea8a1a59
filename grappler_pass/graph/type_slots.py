"""Which ports of a node each dtype attribute governs, and what it may be set to.

The unit of decision is the slot (node, attribute, index): `FusedBatchNormV3` has T for
its activations and U for its statistics; `IdentityN` has one slot per tensor. Looks up
OpDefs and kernels; decides nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass._tensorflow_private import op_def, registered_kernels

if TYPE_CHECKING:
    from grappler_pass.graph.view import Graph

FLOAT32 = types_pb2.DT_FLOAT
DTYPE_NAMES = {
    types_pb2.DT_FLOAT: "float32",
    types_pb2.DT_HALF: "float16",
    types_pb2.DT_BFLOAT16: "bfloat16",
    types_pb2.DT_DOUBLE: "float64",
}
DTYPE_ENUMS = {name: enum for enum, name in DTYPE_NAMES.items()}
FLOATING = frozenset(DTYPE_NAMES)
NO_SLOT = -1
# The type of a GPU that is planned for by a TensorFlow without kernels for one.
ABSENT_GPU = "ABSENT_GPU"

# Types of elements that a list made here will hold; no port of the node shows them.
_ELEMENT_TYPES = {
    "EmptyTensorList": "element_dtype",
    "StackV2": "elem_type",
    "TensorArrayV3": "dtype",
    "TensorListConcatLists": "element_dtype",
    "TensorListReserve": "element_dtype",
}


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class TypeSlot:
    """One dtype of one node: attribute name, and index where it is a list of types."""

    JSON_ARRAY: ClassVar[bool] = True

    node: str
    attr: str
    index: int

    def __str__(self) -> str:
        """Show as `node.T` or `node.T[2]`."""
        return f"{self.node}.{self.attr}" + (f"[{self.index}]" if self.index else "")


class Arg(NamedTuple):
    """The dtype of one port: a governing attribute, or (attr empty) a fixed dtype.

    `position` is the index into the attribute where that is a list of types.
    """

    attr: str
    position: int
    dtype: int


class Signature(NamedTuple):
    """What governs each input and output port of a node."""

    inputs: tuple[Arg, ...]
    outputs: tuple[Arg, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class SlotTable:
    """All slots of floating type, numbered in node order.

    Attributes:
      slots: number to slot.
      node_of: slot number to node number.
      dtypes: slot number to present dtype (DataType enum).
      slots_of: node number to its slots' numbers, the one of the first port first.
    """

    slots: tuple[TypeSlot, ...]
    node_of: tuple[int, ...]
    dtypes: tuple[int, ...]
    slots_of: tuple[tuple[int, ...], ...]
    _inputs: tuple[tuple[tuple[int, int], ...], ...]
    _outputs: tuple[tuple[tuple[int, int], ...], ...]
    _products_alone: frozenset[int] = frozenset()

    @classmethod
    def from_view(cls, view: Graph) -> SlotTable:
        """Number the slots of every node; a node of unknown op has none."""
        slots: list[TypeSlot] = []
        node_of: list[int] = []
        dtypes: list[int] = []
        slots_of: list[tuple[int, ...]] = []
        inputs: list[tuple[tuple[int, int], ...]] = []
        outputs: list[tuple[tuple[int, int], ...]] = []
        for node in view.nodes:
            signature = signature_of(node.proto)
            args = [*signature.inputs, *signature.outputs]
            elements = _ELEMENT_TYPES.get(node.op, "")
            if elements in node.proto.attr:
                # As if a port had their type.
                args.append(Arg(elements, 0, node.proto.attr[elements].type))
            numbers: dict[tuple[str, int], int] = {}
            for arg in args:
                key = (arg.attr, arg.position)
                if arg.attr and arg.dtype in FLOATING and key not in numbers:
                    numbers[key] = len(slots)
                    slots.append(TypeSlot(node.name, *key))
                    node_of.append(node.index)
                    dtypes.append(arg.dtype)
            slots_of.append(tuple(numbers.values()))
            inputs.append(_numbered(signature.inputs, numbers))
            outputs.append(_numbered(signature.outputs, numbers))
        per_slot = tuple(slots), tuple(node_of), tuple(dtypes)
        return cls(*per_slot, tuple(slots_of), tuple(inputs), tuple(outputs))

    def input_slot(self, node: int, position: int) -> int:
        """Return the slot that governs a data input; NO_SLOT: its type is fixed."""
        ports = self._inputs[node]
        return ports[position][0] if position < len(ports) else NO_SLOT

    def with_float32_results(self, nodes: frozenset[int]) -> SlotTable:
        """Return the table with products of which the first two operands may change.

        More is fused behind them, which stays float32.
        """
        if not nodes:
            return self
        inputs, outputs = list(self._inputs), list(self._outputs)
        for node in nodes:
            fixed = ((NO_SLOT, dtype) for _, dtype in inputs[node][2:])
            inputs[node] = (*inputs[node][:2], *fixed)
            outputs[node] = tuple((NO_SLOT, dtype) for _, dtype in outputs[node])
        return dataclasses.replace(
            self, _inputs=tuple(inputs), _outputs=tuple(outputs), _products_alone=nodes
        )

    def has_float32_results(self, node: int) -> bool:
        """Return whether only the product of a fused node may be in 16 bits."""
        return node in self._products_alone

    def output_slot(self, node: int, position: int) -> int:
        """Return the slot that governs an output; NO_SLOT where the type is fixed."""
        ports = self._outputs[node]
        return ports[position][0] if position < len(ports) else NO_SLOT

    def input_dtype(self, node: int, position: int) -> int:
        """Return the present dtype of a data input; DT_INVALID where unknown."""
        ports = self._inputs[node]
        return ports[position][1] if position < len(ports) else types_pb2.DT_INVALID

    def output_dtype(self, node: int, position: int) -> int:
        """Return the present dtype of an output; DT_INVALID where unknown."""
        ports = self._outputs[node]
        return ports[position][1] if position < len(ports) else types_pb2.DT_INVALID

    def output_count(self, node: int) -> int:
        """Return the number of outputs of `node`; 0 where its op is unknown."""
        return len(self._outputs[node])


def _numbered(
    args: tuple[Arg, ...], numbers: dict[tuple[str, int], int]
) -> tuple[tuple[int, int], ...]:
    return tuple((numbers.get((a.attr, a.position), NO_SLOT), a.dtype) for a in args)


@functools.cache
def dtype_name(dtype: int, unknown: str = "") -> str:
    """Return the name of a DataType, or what to call DT_INVALID."""
    return str(tf.as_dtype(dtype).base_dtype.name) if dtype else unknown


@functools.cache
def op_def_of(op: str) -> op_def_pb2.OpDef | None:
    """Return the registered OpDef, or None: a function call or an op of no library."""
    return op_def(op)


def signature_of(proto: NodeDef) -> Signature:
    """Return what governs each port of a node; empty where its op is unknown."""
    if op_def_of(proto.op) is None:
        return Signature((), ())
    values: list[tuple[str, int | tuple[int, ...]]] = []
    for name in _typing_attrs(proto.op):
        value = attr_of(proto, name)
        match value.WhichOneof("value"):
            case "type":
                values.append((name, value.type))
            case "i":
                values.append((name, value.i))
            case _:
                values.append((name, tuple(value.list.type)))
    return _signature(proto.op, tuple(values))


@functools.cache
def _typing_attrs(op: str) -> tuple[str, ...]:
    """Name the attributes that determine number and dtype of an op's ports."""
    op_def = op_def_of(op)
    assert op_def is not None
    args = (*op_def.input_arg, *op_def.output_arg)
    names = (n for a in args for n in (a.type_attr, a.number_attr, a.type_list_attr))
    return tuple(dict.fromkeys(filter(None, names)))


def attr_of(
    proto: NodeDef, name: str, op_def: op_def_pb2.OpDef | None = None
) -> AttrValue:
    """Return an attribute as given, or as its op defines it where it is left out.

    The node is not modified; `op_def` is for an op that is not TensorFlow's own.
    """
    # `in` first: reading a missing key of a protobuf map creates it.
    if name in proto.attr:
        return proto.attr[name]
    known = op_def or op_def_of(proto.op)
    assert known is not None
    return next(attr.default_value for attr in known.attr if attr.name == name)


@functools.lru_cache(maxsize=65536)
def _signature(
    op: str, values: tuple[tuple[str, int | tuple[int, ...]], ...]
) -> Signature:
    op_def = op_def_of(op)
    assert op_def is not None
    attrs = dict(values)
    return Signature(
        tuple(a for arg in op_def.input_arg for a in _expand(arg, attrs)),
        tuple(a for arg in op_def.output_arg for a in _expand(arg, attrs)),
    )


def _expand(
    arg: op_def_pb2.OpDef.ArgDef, attrs: dict[str, int | tuple[int, ...]]
) -> list[Arg]:
    if arg.type_list_attr:
        types = attrs[arg.type_list_attr]
        assert isinstance(types, tuple)
        return [Arg(arg.type_list_attr, i, dtype) for i, dtype in enumerate(types)]
    repeat = attrs[arg.number_attr] if arg.number_attr else 1
    dtype = attrs[arg.type_attr] if arg.type_attr else arg.type
    assert isinstance(repeat, int) and isinstance(dtype, int)
    return [Arg(arg.type_attr, 0, dtype)] * repeat


@functools.cache
def admits(op: str, attr: str, dtype: int) -> bool:
    """Return whether the OpDef lets `attr` hold `dtype`."""
    op_def = op_def_of(op)
    assert op_def is not None
    found = (each.allowed_values.list.type for each in op_def.attr if each.name == attr)
    allowed = next(found, ())
    return not allowed or dtype in allowed


@functools.cache
def has_kernels_for(device_type: str) -> bool:
    """Return whether this build of TensorFlow has kernels for devices of a type."""
    return any(device == device_type for device, _ in _kernels("MatMul"))


@functools.cache
def kernel_exists(
    op: str, types: tuple[tuple[str, int], ...], device_type: str
) -> bool:
    """Say whether a registered kernel's constraints hold for these type attributes."""
    if device_type == ABSENT_GPU:
        # None of its kernels is registered here: the op's definition has decided.
        return True
    return any(
        all(allowed.get(attr, {dtype}) >= {dtype} for attr, dtype in types)
        for device, allowed in _kernels(op)
        if device in (device_type, "DEFAULT")
    )


@functools.cache
def _kernels(op: str) -> tuple[tuple[str, dict[str, frozenset[int]]], ...]:
    """Return (device type, allowed types per attribute) of every plain kernel."""
    found = registered_kernels(op)
    return tuple(
        (
            kernel.device_type,
            {c.name: frozenset(c.allowed_values.list.type) for c in kernel.constraint},
        )
        for kernel in found
        if not kernel.label
    )
