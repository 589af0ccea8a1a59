"""What TensorFlow's remapper, which runs before plugins, makes fused nodes of.

A node tells what kind of op each of its parts was, not always which: a bias may have
been added by `BiasAdd` or by `AddV2`. What it may hold counts as held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Fused op -> the op whose list it shares, as shipped.
_ROOTS = {
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
# Name in the attribute `fused_ops` -> the ops that it may stand for, where there is
# more than the one of that name.
_NAMED = {
    "Add": "Add AddN AddV2",
    "BiasAdd": "Add AddV2 BiasAdd",
    "FusedBatchNorm": "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3",
    "GeluApproximate": "AddV2 Mul Pow Square Tanh",
    "GeluExact": "AddV2 Erf Erfc Mul Neg RealDiv Sub",
    "_FusedHardSwish": "Add AddV2 Mul Relu6",
}


def root_of(op: str) -> str | None:
    """Return the op that a fused op begins with; None of any other op."""
    return _ROOTS.get(op)


def ops_within(node: NodeDef) -> tuple[str, ...]:
    """Return the ops that a fused node may have been made of; empty of other nodes."""
    if node.op not in _ROOTS and node.op not in _WITHIN:
        return ()
    found = [_ROOTS.get(node.op, ""), *_WITHIN.get(node.op, "").split()]
    # Reading an absent key would create it.
    if "fused_ops" in node.attr:
        for name in node.attr["fused_ops"].list.s:
            found += _NAMED.get(name.decode(), name.decode()).split()
    return tuple(dict.fromkeys(filter(None, found)))
