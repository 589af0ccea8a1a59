"""From a node to a probe: what must be known of an op to run it alone.

Nodes that take the same time get equal probes, whatever their names: attributes that
the graph leaves out are filled in from the OpDef, private ones are left out. A size
that is unknown is taken for what pricing takes it for (`TensorSpec.dims`); the price
says so by a larger error.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

from google.protobuf import text_format
from tensorflow.core.framework import attr_value_pb2, op_def_pb2
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.python.framework import tensor_util

from grappler_pass.costs.calls import TensorSpec
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Constant, Probe
from grappler_pass.costs.work.op_classes import FREE_OPS
from grappler_pass.graph.op_table import CONSTANT_OPS, FORWARDING_OPS
from grappler_pass.graph.shapes import Shapes, known_shape
from grappler_pass.graph.type_slots import SlotTable, attr_of, dtype_name, op_def_of
from grappler_pass.graph.view import GraphView, Node, Port

MOST_CONSTANT_VALUES = 64

_NO_TENSORS = frozenset({"resource", "variant", "string"})
_INTEGERS = frozenset("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64".split())
# Operands that say what to do rather than being computed with: their values matter.
_DIRECTING = frozenset(
    """
    axes axis batch_dims begin block_shape concat_dim crops depth dim dimension dims
    end filter_sizes ij input_sizes k multiples new_sizes num_lower num_segments
    num_upper orig_input_shape output_shape paddings perm reduction_indices seed shape
    shift size size_splits sizes split_dim strides
    """.split()
)
# Those that say what the shape of the first result is; so, if need be, does that.
_SHAPE_OF_RESULT = frozenset(
    "dims filter_sizes input_sizes orig_input_shape shape".split()
)


def probe_of(
    view: GraphView, slots: SlotTable, shapes: Shapes, node: int, low: Collection[int]
) -> Probe | None:
    """Return the probe of a node, or None where it cannot be run alone.

    That is so of what has state or side effects, takes handles or text, runs no kernel,
    is directed by an operand that is no constant, or reads a tensor of unknown rank.
    `low` are those of the node's slots whose dtype may change.
    """
    return _Subject(view, slots, shapes, view.nodes[node], frozenset(low)).probe()


# The one probe of some fields, whose key is then made once.
_interned = functools.lru_cache(maxsize=16384)(Probe)


class _Subject(NamedTuple):
    """One node, with what its probe is read from."""

    view: GraphView
    slots: SlotTable
    shapes: Shapes
    node: Node
    low: frozenset[int]

    def probe(self) -> Probe | None:
        op_def = op_def_of(self.node.op)
        if op_def is None or op_def.is_stateful or self.node.op in FREE_OPS:
            return None
        changing = {
            (self.slots.slots[s].attr, self.slots.slots[s].index) for s in self.low
        }
        attrs = self._attrs({name for name, _ in changing})
        inputs = self._inputs()
        if attrs is None or inputs is None:
            return None
        constants = self._constants(op_def, inputs)
        if constants is None:
            return None
        dtype_attrs = tuple(sorted(changing))
        return _interned(self.node.op, attrs, dtype_attrs, inputs, constants)

    def _attrs(self, changing: set[str]) -> tuple[tuple[str, str], ...] | None:
        """Return the public attributes; None where one is a function.

        A list of types of which some change stays, as the graph has it.
        """
        given = self.node.proto.attr
        found: list[tuple[str, str]] = []
        for name, kind, default in _public_attrs(self.node.op):
            if kind == "func":
                return None
            if name in changing and kind == "type":
                continue
            # `in` first: reading a missing key of a protobuf map creates it.
            value = given[name].SerializeToString() if name in given else default
            found.append((name, _text(value)))
        return tuple(found)

    def _inputs(self) -> tuple[TensorSpec, ...] | None:
        found = [self._input(position) for position in range(len(self.node.inputs))]
        return None if None in found else tuple(filter(None, found))

    def _input(self, position: int) -> TensorSpec | None:
        shape = self._shape(self.node.inputs[position])
        if shape is None:
            return None
        index = self.node.index
        if self.slots.input_slot(index, position) in self.low:
            return TensorSpec(shape, MEASURED_DTYPE)
        dtype = dtype_name(self.slots.input_dtype(index, position), "resource")
        return None if dtype in _NO_TENSORS else TensorSpec(shape, dtype)

    def _shape(self, port: Port) -> tuple[int, ...] | None:
        shape = known_shape(self.shapes, self.view, port)
        return None if shape is None else TensorSpec(shape, "").dims

    def _constants(
        self, op_def: op_def_pb2.OpDef, inputs: tuple[TensorSpec, ...]
    ) -> tuple[tuple[int, Constant], ...] | None:
        """Return the small integer operands that the graph holds.

        None where one that directs the op is not among them.
        """
        found: list[tuple[int, Constant]] = []
        names = _argument_names(self.node, op_def)
        for position, (spec, name) in enumerate(zip(inputs, names, strict=False)):
            if spec.dtype not in _INTEGERS:
                continue
            constant = self._constant(position, spec, name)
            if constant is not None:
                found.append((position, constant))
            elif name in _DIRECTING:
                return None
        return tuple(found)

    def _constant(self, position: int, spec: TensorSpec, name: str) -> Constant | None:
        source = self.view.source(self.node.inputs[position], FORWARDING_OPS)
        if source.op in CONSTANT_OPS and spec.elements <= MOST_CONSTANT_VALUES:
            return _constant(source.proto.attr["value"].tensor.SerializeToString())
        result = self._shape(Port(self.node.index, 0))
        if name not in _SHAPE_OF_RESULT or result is None:
            return None
        return Constant(spec.dtype, (len(result),), result)


@functools.cache
def _public_attrs(op: str) -> tuple[tuple[str, str, bytes], ...]:
    """Return name, kind and serialized default of an op's attributes, by name."""
    op_def = op_def_of(op)
    assert op_def is not None
    return tuple(
        (attr.name, attr.type, attr.default_value.SerializeToString())
        for attr in sorted(op_def.attr, key=lambda attr: str(attr.name))
        if not attr.name.startswith("_")
    )


@functools.lru_cache(maxsize=16384)
def _text(serialized: bytes) -> str:
    value = attr_value_pb2.AttrValue.FromString(serialized)
    return str(text_format.MessageToString(value, as_one_line=True))


def _argument_names(node: Node, op_def: op_def_pb2.OpDef) -> tuple[str, ...]:
    """Return the OpDef's name of each input; a repeated argument's for each of it."""
    return tuple(
        str(arg.name) for arg in op_def.input_arg for _ in range(_count(node, arg))
    )


def _count(node: Node, arg: op_def_pb2.OpDef.ArgDef) -> int:
    if arg.number_attr:
        return int(attr_of(node.proto, arg.number_attr).i)
    if arg.type_list_attr:
        return len(attr_of(node.proto, arg.type_list_attr).list.type)
    return 1


@functools.lru_cache(maxsize=4096)
def _constant(serialized: bytes) -> Constant:
    array = tensor_util.MakeNdarray(TensorProto.FromString(serialized))
    return Constant(
        str(array.dtype.name), tuple(array.shape), tuple(array.ravel().tolist())
    )
