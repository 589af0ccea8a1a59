"""What TensorFlow's remapper, which runs before plugins, makes fused nodes of.

A node says what kind of op each of its parts was, not always which: a bias may have
been added by `BiasAdd` or by `AddV2`. What it may hold counts as held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Fused op -> the op whose list it shares, as shipped.
ROOTS = {
    "_FusedBatchNormEx": "FusedBatchNormV3",
    "_FusedBatchNormGradEx": "FusedBatchNormGradV3",
    "_FusedConv2D": "Conv2D",
    "_FusedConv3D": "Conv3D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
    "_MklFusedBatchMatMulV2": "BatchMatMulV2",
}
_NORM = "AddV2 Mean Mul Rsqrt SquaredDifference Sub"
# Fused op -> what else every node of it may hold.
_WITHIN = {
    "_FusedBatchNormEx": "AddV2 Relu",
    "_FusedBatchNormGradEx": "ReluGrad",
    "_MklFusedInstanceNorm": f"{_NORM} LeakyRelu Relu",
    "_MklFusedMish": "Mul Softplus Tanh",
    "_MklLayerNorm": f"{_NORM} FusedBatchNormV3",
    "_MklSwish": "Mul Sigmoid",
}
# No bfloat16 kernel is registered for these: there, they run as their parts.
SPLIT_IN_BFLOAT16 = frozenset({"_FusedConv2D"})


class Epilogue(NamedTuple):
    """What a name in the attribute `fused_ops` stands for; each many divided by spaces.

    Attributes:
      stands_for: the ops that it may have been.
      part: the op that does it in a fused node that is split; empty if none does.
      operands: how many inputs of the fused node are its own.
      alone: classes of costs of the plain ops that do it alone; of `part`, if empty.
    """

    stands_for: str
    part: str = ""
    operands: int = 0
    alone: str = ""


EPILOGUES = {
    "Add": Epilogue("Add AddN AddV2", "AddV2", 1),
    "BiasAdd": Epilogue("Add AddV2 BiasAdd", "BiasAdd", 1),
    "Elu": Epilogue("Elu", "Elu"),
    "FusedBatchNorm": Epilogue(
        "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3",
        operands=4,
        alone="FusedBatchNorm.inference",
    ),
    "GeluApproximate": Epilogue(
        "AddV2 Mul Pow Square Tanh", alone="Pow Mul AddV2 Mul Tanh AddV2 Mul Mul"
    ),
    "GeluExact": Epilogue(
        "AddV2 Erf Erfc Mul Neg RealDiv Sub", alone="Mul Erf AddV2 Mul Mul"
    ),
    "LeakyRelu": Epilogue("LeakyRelu", "LeakyRelu"),
    "Mul": Epilogue("Mul", "Mul", 1),
    "Relu": Epilogue("Relu", "Relu"),
    "Relu6": Epilogue("Relu6", "Relu6"),
    "Sigmoid": Epilogue("Sigmoid", "Sigmoid"),
    "Tanh": Epilogue("Tanh", "Tanh"),
    "_FusedHardSwish": Epilogue("Add AddV2 Mul Relu6", alone="AddV2 Relu Mul Mul"),
}


def epilogue_of(name: str) -> Epilogue:
    """Return what a name in `fused_ops` stands for; an unknown one for its like."""
    return EPILOGUES.get(name) or Epilogue(name, alone=name)


def fused_parts(node: NodeDef) -> Iterator[tuple[str, range]]:
    """Yield what is fused behind a product, with the positions of its own operands."""
    # Reading an absent key would create it.
    fused = node.attr["fused_ops"].list.s if "fused_ops" in node.attr else ()
    begin = 2
    for name in map(bytes.decode, fused):
        end = begin + epilogue_of(name).operands
        yield name, range(begin, end)
        begin = end


def root_of(op: str) -> str | None:
    """Return the op that a fused op begins with; None of any other op."""
    return ROOTS.get(op)


def ops_within(node: NodeDef) -> tuple[str, ...]:
    """Return the ops that a fused node may have been made of; empty of other nodes."""
    if node.op not in ROOTS and node.op not in _WITHIN:
        return ()
    found = [ROOTS.get(node.op, ""), *_WITHIN.get(node.op, "").split()]
    for name, _ in fused_parts(node):
        found += epilogue_of(name).stands_for.split()
    return tuple(dict.fromkeys(filter(None, found)))
