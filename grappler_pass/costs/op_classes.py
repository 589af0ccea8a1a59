"""The classes that prices are kept in: which ops share one, and what their axes are.

One row per class. A profile holds a grid of seconds over the axes named here; an op
that is in no row is priced by the roofline.
"""

from __future__ import annotations

MATMUL_AXES = ("m", "k", "n")
CONV_AXES = ("pixels", "in_channels", "out_channels")
DEPTHWISE_AXES = ("pixels", "channels")
ELEMENTS = ("elements",)
ROWS = ("rows", "columns")

# The value is computed when the graph is built, or is a view, or moves no data.
FREE_OPS = frozenset(
    """
    Const HostConst Placeholder PlaceholderWithDefault VarHandleOp ReadVariableOp
    VariableV2 Variable _Arg _Retval _DeviceArg _DeviceRetval NoOp Identity IdentityN
    StopGradient PreventGradient CheckNumerics EnsureShape Snapshot Reshape ExpandDims
    Squeeze Shape ShapeN Size Rank BroadcastGradientArgs InvertPermutation Enter Exit
    Merge Switch NextIteration LoopCond RefEnter RefExit RefMerge RefSwitch
    RefNextIteration Assert Range Bitcast _Send _Recv _HostSend _HostRecv
    TensorListReserve TensorListLength TensorListElementShape EmptyTensorList
    TensorListGetItem TensorListSetItem TensorListPushBack TensorListPopBack
    TensorArrayV3 TensorArrayGradV3 TensorArraySizeV3 TensorArrayCloseV3
    """.split()
)

# They give a tensor another shape or name.
VIEWS = frozenset(
    """
    EnsureShape ExpandDims Identity PreventGradient Reshape Snapshot Squeeze
    StopGradient
    """.split()
)

# Elementwise ops whose seconds follow from the larger tensor's elements: class -> ops.
_ELEMENTWISE_ROWS: dict[str, str] = {
    "AddV2": "AddV2 Add Sub Maximum Minimum",
    "SquaredDifference": "SquaredDifference",
    "Mul": "Mul MulNoNan",
    "RealDiv": "RealDiv Div DivNoNan Xdivy TruncateDiv",
    "Greater": "Greater GreaterEqual Less LessEqual Equal NotEqual ApproximateEqual",
    "SelectV2": "SelectV2 Select",
    "Pow": "Pow",
    "Neg": "Neg Abs Sign",
    "Floor": "Floor Ceil Round Rint",
    "Square": "Square",
    "Relu": "Relu",
    "Relu6": "Relu6 ClipByValue",
    "LeakyRelu": "LeakyRelu",
    "ReluGrad": "ReluGrad Relu6Grad LeakyReluGrad",
    "Elu": "Elu",
    "EluGrad": "EluGrad",
    "Selu": "Selu",
    "SeluGrad": "SeluGrad",
    "Softplus": "Softplus",
    "Log1p": "Log1p Xlog1py",
    "SoftplusGrad": "SoftplusGrad",
    "Softsign": "Softsign",
    "SoftsignGrad": "SoftsignGrad",
    "Tanh": "Tanh",
    "TanhGrad": "TanhGrad",
    "Sigmoid": "Sigmoid",
    "SigmoidGrad": "SigmoidGrad",
    "Erf": "Erf",
    "Erfc": "Erfc Erfinv Ndtri",
    "Exp": "Exp",
    "Expm1": "Expm1 Sinh Cosh",
    "Sin": "Sin Cos",
    "Log": "Log Xlogy",
    "Sqrt": "Sqrt",
    "Rsqrt": "Rsqrt",
    "RsqrtGrad": "RsqrtGrad",
    "SqrtGrad": "SqrtGrad ReciprocalGrad InvGrad",
    "Reciprocal": "Reciprocal Inv",
    "L2Loss": "L2Loss",
    "IsFinite": "IsFinite IsNan IsInf",
    "_MklSwish": "_MklSwish _FusedSwish _MklFusedMish",
    "RandomUniform": "RandomUniform StatelessRandomUniformV2 StatelessRandomUniform "
    "RandomStandardNormal TruncatedNormal StatelessRandomNormalV2 "
    "StatelessTruncatedNormalV2 ParameterizedTruncatedNormal",
}
ELEMENTWISE = {
    op: op_class for op_class, ops in _ELEMENTWISE_ROWS.items() for op in ops.split()
}
# Binary classes measured with one operand broadcast: along rows, columns, or a scalar.
BROADCAST_CLASSES = frozenset({"AddV2", "Mul", "RealDiv"})
BROADCASTS = ("row", "column", "scalar")

# Data movement: seconds follow from the elements written.
_MOVEMENT_ROWS: dict[str, str] = {
    "Transpose": "Transpose ConjugateTranspose",
    "ConcatV2": "ConcatV2 Concat Pack DeepCopy ParallelDynamicStitch DynamicStitch "
    "TensorListStack TensorListConcatV2 TensorArrayGatherV3 TensorArrayConcatV3",
    "Slice": "Slice StridedSlice Split SplitV Unpack TensorListFromTensor "
    "TensorListSplit TensorArrayScatterV3 TensorArraySplitV3",
    "Pad": "Pad PadV2 MirrorPad StridedSliceGrad MirrorPadGrad",
    "Tile": "Tile BroadcastTo Fill OnesLike ZerosLike",
    "ReverseV2": "ReverseV2 Roll ReverseSequence",
    "DepthToSpace": "DepthToSpace SpaceToDepth BatchToSpaceND SpaceToBatchND",
}
MOVEMENT = {
    op: op_class for op_class, ops in _MOVEMENT_ROWS.items() for op in ops.split()
}

# Seconds follow from rows gathered or summed, and their width. Those of a table that
# the cache cannot hold are a class of their own, with the suffix COLD.
COLD = ".cold"
GATHER = frozenset({"GatherV2", "Gather", "ResourceGather", "GatherNd"})
SEGMENT = frozenset(
    """
    UnsortedSegmentSum SegmentSum SegmentSumV2 ScatterNd TensorScatterAdd
    TensorScatterUpdate ResourceScatterAdd ResourceScatterSub ResourceScatterUpdate
    """.split()
)

REDUCTIONS = {
    "Sum": "Sum",
    "Mean": "Sum",
    "EuclideanNorm": "Sum",
    "Prod": "Sum",
    "Max": "Max",
    "Min": "Max",
}
REDUCED = ("inner", "outer")

SOFTMAX = {"Softmax": "Softmax", "LogSoftmax": "LogSoftmax"}
CROSS_ENTROPY = frozenset(
    {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
)

MATMULS = frozenset({"MatMul", "_FusedMatMul", "SparseMatMul", "_MklMatMul"})
BATCH_MATMULS = frozenset(
    {
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "_MklBatchMatMulV2",
        "_MklFusedBatchMatMulV2",
    }
)

CONVOLUTIONS = {
    "Conv": "forward",
    "Conv2D": "forward",
    "FusedPadConv2D": "forward",
    "FusedResizeAndPadConv2D": "forward",
    "_FusedConv2D": "forward",
    "Conv3D": "forward",
    "_FusedConv3D": "forward",
    "Conv2DBackpropInput": "input_gradient",
    "Conv2DBackpropInputV2": "input_gradient",
    "Conv3DBackpropInput": "input_gradient",
    "Conv3DBackpropInputV2": "input_gradient",
    "Conv2DBackpropFilter": "filter_gradient",
    "Conv2DBackpropFilterV2": "filter_gradient",
    "Conv3DBackpropFilter": "filter_gradient",
    "Conv3DBackpropFilterV2": "filter_gradient",
}
DEPTHWISE = {
    "DepthwiseConv2dNative": "forward",
    "_FusedDepthwiseConv2dNative": "forward",
    "DepthwiseConv2dNativeBackpropInput": "input_gradient",
    "DepthwiseConv2dNativeBackpropFilter": "filter_gradient",
}
DIRECTIONS = ("forward", "input_gradient", "filter_gradient")
# Kernel areas that are measured, and the strides of each; others are scaled from the
# nearest below in proportion to their area.
CONV_KERNELS: dict[int, tuple[int, ...]] = {1: (1, 2), 9: (1, 2), 49: (2,)}
DEPTHWISE_KERNELS: dict[int, tuple[int, ...]] = {9: (1, 2), 25: (1, 2)}

# Updates of variables: tensors of the gradient's size that are read and written, the
# gradient itself included.
UPDATES: dict[str, int] = {
    "ResourceApplyGradientDescent": 3,
    "ResourceApplyMomentum": 5,
    "ResourceApplyKerasMomentum": 5,
    "ResourceApplyAdagrad": 5,
    "ResourceApplyAdagradV2": 5,
    "ResourceApplyRMSProp": 7,
    "ResourceApplyAdam": 7,
    "ResourceApplyAdamWithAmsgrad": 9,
    "ResourceApplyFtrl": 7,
    "ResourceApplyFtrlV2": 7,
    "AssignVariableOp": 2,
    "AssignAddVariableOp": 3,
    "AssignSubVariableOp": 3,
}

BATCH_NORMS = {
    "FusedBatchNorm": "FusedBatchNorm",
    "FusedBatchNormV2": "FusedBatchNorm",
    "FusedBatchNormV3": "FusedBatchNorm",
    "_FusedBatchNormEx": "FusedBatchNorm",
    "FusedBatchNormGrad": "FusedBatchNormGrad",
    "FusedBatchNormGradV2": "FusedBatchNormGrad",
    "FusedBatchNormGradV3": "FusedBatchNormGrad",
    "_FusedBatchNormGradEx": "FusedBatchNormGrad",
}
POOLS = {
    "MaxPool": "MaxPool",
    "AvgPool": "AvgPool",
    "MaxPoolGrad": "MaxPoolGrad",
    "AvgPoolGrad": "AvgPoolGrad",
}

# Classes whose work is multiplication of matrices: their peak is that of matrix units.
MATRIX_PREFIXES = ("matmul", "batch_matmul", "conv")


def axes_of(op_class: str) -> tuple[str, ...]:
    """Return the names of the axes over which ``op_class`` is measured."""
    family = op_class.split(".", maxsplit=1)[0]
    return _FAMILY_AXES.get(family, ELEMENTS)


_FAMILY_AXES: dict[str, tuple[str, ...]] = {
    "matmul": MATMUL_AXES,
    "batch_matmul": ("batch", *MATMUL_AXES),
    "conv": CONV_AXES,
    "depthwise": DEPTHWISE_AXES,
    "Sum": ("kept", "reduced"),
    "Max": ("kept", "reduced"),
    "Softmax": ROWS,
    "LogSoftmax": ROWS,
    "cross_entropy": ROWS,
    "gather": ROWS,
    "segment": ROWS,
    "BiasAdd": ROWS,
    "BiasAddGrad": ROWS,
    "FusedBatchNorm": ROWS,
    "FusedBatchNormGrad": ROWS,
    "LayerNorm": ROWS,
    "pool": ("elements", "window"),
}
