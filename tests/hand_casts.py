"""What an expert would do by hand: the operands of products in 16 bits, all else not.

The expert's program is the float32 one in which every product gets rounded operands.
No 16-bit kernel of TensorFlow returns float32, so its result may be rounded as well.
"""

from __future__ import annotations

import re

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.shapes import Shapes
from tests.soundness import FLOAT32, LOW_DTYPES, input_dtypes, split_inputs

_PRODUCT = re.compile(
    r"(Batch)?MatMul(V2|V3)?|Einsum|Conv(2D|3D)(Backprop(Input|Filter)(V2)?)?"
    r"|DepthwiseConv2dNative(Backprop(Input|Filter))?"
)
_FUSED = re.compile(r"_Fused(MatMul|Conv2D|Conv3D|DepthwiseConv2dNative)")


def by_hand(
    graph_def: GraphDef, low_dtype: str, shapes: Shapes, *, results: bool
) -> GraphDef:
    """Return a float32 graph whose products get rounded operands.

    Before   a, b --> matmul --> c
    After    a, b --> 16 bits --> float32 --> matmul --> c

    Not done: a product that sums nothing, such as an outer one, is arithmetic; fused
    nodes, in which a product's end cannot be seen, must not be there.

    Args:
      graph_def: in which Grappler has fused nothing; not modified.
      low_dtype: to round to.
      shapes: by name of node.
      results: whether the products' results are rounded, too.
    """
    made = GraphDef()
    made.CopyFrom(graph_def)
    dtype = LOW_DTYPES[low_dtype]
    for i, node in enumerate(graph_def.node):
        assert not _FUSED.fullmatch(node.op), f"{node.name} hides where a product ends"
        if not is_product(node, shapes) or node.attr["T"].type != FLOAT32:
            continue
        product = made.node[i]
        for k, source in enumerate(input_dtypes(node, {}) or []):
            if source == FLOAT32:
                rounding = f"{node.name}/operand_{k}"
                product.input[k] = rounded(made, product.input[k], rounding, dtype)
        if results:
            product.name = f"{node.name}/product"
            rounded(made, product.name, node.name, dtype)
    return made


def with_exact_sums(graph_def: GraphDef) -> GraphDef:
    """Return a rewritten graph whose 16-bit products sum in float32.

    That is what 16-bit units do; TensorFlow's own kernels for CPUs without them sum up
    in 16 bits in some of its products, which no plan could be blamed for.

    Before   a, b (low) --> matmul (low) --> c (low)
    After    a, b (low) --> float32 --> matmul (float32) --> low --> c (low)
    """
    made = GraphDef()
    made.CopyFrom(graph_def)
    for i, node in enumerate(graph_def.node):
        low = node.attr["T"].type if "T" in node.attr else 0
        if not is_kernel(node) or low not in LOW_DTYPES.values():
            continue
        product = made.node[i]
        product.name = f"{node.name}/product"
        for attr in product.attr.values():
            if attr.type == low:
                attr.type = FLOAT32
            elif low in attr.list.type:
                types = attr.list.type
                types[:] = [FLOAT32 if t == low else t for t in types]
        for k, source in enumerate(input_dtypes(node, {}) or []):
            if source == low:
                up = f"{node.name}/operand_{k}"
                _cast(made, product.input[k], up, low, FLOAT32)
                product.input[k] = up
        _cast(made, product.name, node.name, FLOAT32, low)
    return made


def is_kernel(node: NodeDef) -> bool:
    """Return whether a node computes a product, with or without what is fused to it."""
    return bool(_PRODUCT.fullmatch(node.op) or _FUSED.fullmatch(node.op))


def is_product(node: NodeDef, shapes: Shapes) -> bool:
    """Return whether a node sums products of more than one pair, as far as is known."""
    if not _PRODUCT.fullmatch(node.op):
        return False
    known = [
        shapes[name][port] if port < len(shapes.get(name, ())) else None
        for name, port in split_inputs(node)[0]
    ]
    if node.op == "Einsum":
        return _summed_size(node.attr["equation"].s.decode(), known) != 1
    if "MatMul" in node.op and known[0]:
        turned = any(
            node.attr[name].b for name in ("transpose_a", "adj_x") if name in node.attr
        )
        return known[0][-2 if turned else -1] != 1
    return True


def _summed_size(equation: str, shapes: list) -> int | None:
    """Return over how many pairs einsum sums; None where a shape is not known."""
    operands, _, result = equation.partition("->")
    sizes: dict[str, int | None] = {}
    for labels, shape in zip(operands.split(","), shapes, strict=True):
        if "..." in labels or shape is None:
            return None
        sizes.update(zip(labels, shape, strict=True))
    total = 1
    for label in sizes.keys() - set(result):
        if sizes[label] is None or sizes[label] < 0:
            return None
        total *= sizes[label]
    return total


def rounded(graph_def: GraphDef, tensor: str, name: str, dtype: int) -> str:
    """Append the rounding of a tensor; its last node has the name."""
    _cast(graph_def, tensor, f"{name}/low", FLOAT32, dtype)
    return _cast(graph_def, f"{name}/low", name, dtype, FLOAT32)


def _cast(graph_def: GraphDef, tensor: str, name: str, source: int, target: int) -> str:
    cast = graph_def.node.add(name=name, op="Cast")
    cast.input.append(tensor)
    cast.attr["SrcT"].type = source
    cast.attr["DstT"].type = target
    return name
