"""How inputs name tensors, and new nodes.

A tensor is called as inputs call it: `node`, or `node:1` for a further output. `^node`
stands for the end of a node, which others wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.type_slots import op_def_of

# The field of an attribute's value that holds a kind of attribute; in lists, too.
_FIELDS = {"type": "type", "int": "i", "float": "f", "bool": "b", "string": "s"}


def name_in(text: str) -> str:
    """Return the node whose output, or whose end, an input stands for."""
    return text.removeprefix("^").partition(":")[0]


def split_input(text: str) -> tuple[str, int]:
    """Return node name and output number of an input string; -1 is a control edge."""
    if text[:1] == "^":
        return text[1:], -1
    node, colon, output = text.rpartition(":")
    if not colon:
        return text, 0
    return node, int(output)


def texts_of(node: NodeDef) -> list[str]:
    """Return what a node reads and waits for, each output written in one way."""
    return [text.removesuffix(":0") for text in node.input]


def data_of(texts: Iterable[str]) -> list[str]:
    """Return the tensors among inputs, without what is only waited for."""
    return [text for text in texts if not text.startswith("^")]


def new_node(
    op: str, name: str = "", inputs: Iterable[str] = (), device: str = "", **attrs: Any
) -> NodeDef:
    """Return a node with attributes of the kinds that its op's definition says."""
    node = NodeDef(name=name, op=op, input=inputs, device=device)
    op_def = op_def_of(op)
    kinds = {attr.name: attr.type for attr in op_def.attr} if op_def else {}
    for key, value in attrs.items():
        # All that an op without a definition has here are types.
        assumed = "list(type)" if isinstance(value, list) else "type"
        kind, attr = kinds.get(key, assumed), node.attr[key]
        if kind in _FIELDS:
            setattr(attr, _FIELDS[kind], value)
        elif kind.startswith("list("):
            getattr(attr.list, _FIELDS[kind[5:-1]]).extend(value)
        else:
            getattr(attr, kind).CopyFrom(value)
    return node


def new_constant(
    name: str,
    value: Any,
    dtype: int | None = None,
    shape: Sequence[int] | None = None,
    *,
    inputs: Iterable[str] = (),
    device: str = "",
) -> NodeDef:
    """Return a constant; it runs in the loop or branch of what it waits for."""
    tensor = tf.make_tensor_proto(value, dtype, shape)
    return new_node("Const", name, inputs, device, dtype=tensor.dtype, value=tensor)
