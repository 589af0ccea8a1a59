"""Graphs as text, one line per node, read and printed.

  x = Placeholder
  weight = Const value=2.0
  product = MatMul(x, weight) transpose_b=true @/device:GPU:0
  parts = Split(axis, product, ^x) num_split=2
  sum = AddV2(parts:0, parts:1)

`:1` is an output, `^` a control edge, `@` a device. Attributes that are left out take
the OpDef's default; types without one are float32, lengths of lists are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.op_def_pb2 import OpDef
from tensorflow.python.framework import dtypes, op_def_registry, tensor_util

_LINE = re.compile(r"(\S+) = (\w+)(?:\(([^)]*)\))?(.*)")


def graph_from_text(text: str) -> GraphDef:
    """Return the GraphDef that the lines describe; `#` begins a comment.

    Raises:
      ValueError: a line that is no node, or an attribute without a value.
    """
    graph_def = GraphDef()
    for line in text.splitlines():
        stripped = line.partition("#")[0].strip()
        if stripped:
            graph_def.node.append(_node_from_line(stripped))
    return graph_def


def text_from_graph(graph_def: GraphDef) -> str:
    """Return one line per node in the graph's order: name, op, inputs, float types."""
    return "\n".join(_line_from_node(node) for node in graph_def.node)


def _node_from_line(line: str) -> NodeDef:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"no node: {line!r}; write `name = Op(input, ...) attr=value`")
    name, op, inputs, rest = match.groups()
    node = NodeDef(name=name, op=op)
    texts = [part.strip() for part in (inputs or "").split(",") if part.strip()]
    node.input.extend(re.sub(r":0$", "", text) for text in texts)
    given: dict[str, str] = {}
    for word in rest.split():
        if word.startswith("@"):
            node.device = word[1:]
        else:
            key, _, value = word.partition("=")
            given[key] = value
    _set_attrs(node, op_def_registry.get(op), given)
    return node


def _set_attrs(node: NodeDef, op_def: OpDef | None, given: dict[str, str]) -> None:
    known = {attr.name: attr for attr in op_def.attr} if op_def else {}
    for key, value in given.items():
        kind = known[key].type if key in known else _kind_of(value)
        if kind != "tensor":
            node.attr[key].CopyFrom(_attr_value(kind, value))
    for key, attr in known.items():
        if key in node.attr:
            continue
        if attr.HasField("default_value"):
            node.attr[key].CopyFrom(attr.default_value)
        else:
            node.attr[key].CopyFrom(_implied(node, op_def, attr, given))


def _kind_of(value: str) -> str:
    if value in ("true", "false"):
        return "bool"
    return "int" if re.fullmatch(r"-?\d+", value) else "string"


def _attr_value(kind: str, value: str) -> AttrValue:
    result = AttrValue()
    if kind.startswith("list("):
        result.list.SetInParent()
        for part in filter(None, value.strip("[]").split(",")):
            one = _attr_value(kind[5:-1], part)
            field = one.WhichOneof("value")
            getattr(result.list, field).append(getattr(one, field))
    elif kind == "type":
        result.type = dtypes.as_dtype(value).as_datatype_enum
    elif kind == "bool":
        result.b = value == "true"
    elif kind == "int":
        result.i = int(value)
    elif kind == "float":
        result.f = float(value)
    elif kind == "func":
        result.func.name = value
    elif kind == "shape":
        result.shape.SetInParent()
        for size in filter(None, value.strip("[]").split(",")):
            result.shape.dim.add(size=int(size))
    else:
        result.s = value.encode()
    return result


def _implied(
    node: NodeDef, op_def: OpDef, attr: OpDef.AttrDef, given: dict[str, str]
) -> AttrValue:
    """Return what an attribute without default must be, or float32 for a type."""
    if attr.type == "type":
        return _attr_value("type", "float32")
    if attr.type == "tensor":
        dtype = dtypes.as_dtype(node.attr["dtype"].type) if "dtype" in node.attr else 1
        numpy_dtype = dtypes.as_dtype(dtype).as_numpy_dtype
        numbers = [float(n) for n in given.get("value", "0").strip("[]").split(",")]
        value = numbers[0] if len(numbers) == 1 else numbers
        made = AttrValue()
        made.tensor.CopyFrom(
            tensor_util.make_tensor_proto(np.asarray(value, numpy_dtype))
        )
        return made
    count = sum(not text.startswith("^") for text in node.input)
    others = sum(
        not arg.number_attr and not arg.type_list_attr for arg in op_def.input_arg
    )
    if attr.type == "int":
        return _attr_value("int", str(count - others))
    if attr.type == "list(type)":
        return _attr_value("list(type)", ",".join(["float32"] * (count - others)))
    if attr.type in ("shape", "string"):
        return _attr_value(attr.type, "")
    raise ValueError(f"node {node.name!r}: attribute {attr.name!r} needs a value")


def _line_from_node(node: NodeDef) -> str:
    inputs = f"({', '.join(node.input)})" if node.input else ""
    device = f" @{node.device}" if node.device else ""
    types = "".join(f" {key}={value}" for key, value in _float_types(node))
    return f"{node.name} = {node.op}{inputs}{types}{device}"


def _float_types(node: NodeDef) -> Iterator[tuple[str, str]]:
    for key in sorted(node.attr):
        attr = node.attr[key]
        field = attr.WhichOneof("value")
        enums = [attr.type] if field == "type" else list(attr.list.type)
        names = [dtypes.as_dtype(enum).name for enum in enums if enum]
        if any("float" in name for name in names):
            yield key, names[0] if field == "type" else f"[{','.join(names)}]"
