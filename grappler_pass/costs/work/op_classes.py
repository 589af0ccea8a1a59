"""The classes that prices are kept in: which ops share one, and what their axes are.

One row per class. A profile holds a grid of seconds over the axes named here; an op
that is in no row is priced by the roofline.
"""

from __future__ import annotations

from grappler_pass.graph import op_table as table

MATMUL_AXES = ("m", "k", "n")
CONV_AXES = ("pixels", "in_channels", "out_channels")
DEPTHWISE_AXES = ("pixels", "channels")
ELEMENTS = ("elements",)
ROWS = ("rows", "columns")

# The value is computed when the graph is built, or is a view, or moves no data.
FREE_OPS = (
    table.CONSTANT_OPS
    | table.INPUT_OPS
    | table.RESULT_OPS
    | table.VARIABLE_OPS
    | table.CONTROL_FLOW_OPS
    | table.ALIASING_OPS
    | table.EXCHANGE_OPS
    | table.SHAPE_OPS
    | frozenset(
        """
        Assert BroadcastGradientArgs EmptyTensorList InvertPermutation NoOp Range
        ReadVariableOp TensorArrayCloseV3 TensorArrayGradV3 TensorArraySizeV3
        TensorArrayV3 TensorListElementShape TensorListGetItem TensorListLength
        TensorListPopBack TensorListPushBack TensorListReserve TensorListSetItem
        """.split()
    )
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

DIRECTIONS = ("forward", "input_gradient", "filter_gradient")


def _direction(op: str) -> str:
    if "Backprop" not in op:
        return "forward"
    return "input_gradient" if "Input" in op else "filter_gradient"


_CONVOLUTIONS = {op: _direction(op) for op in sorted(table.CONVOLUTION_OPS)}
DEPTHWISE = {op: way for op, way in _CONVOLUTIONS.items() if "Depthwise" in op}
CONVOLUTIONS = {
    op: way
    for op, way in _CONVOLUTIONS.items()
    if op not in DEPTHWISE and op != "XlaConv"
}
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
    "ResourceApplyAdaMax": 7,
    "ResourceApplyAdadelta": 7,
    "ResourceApplyCenteredRMSProp": 9,
    "ResourceApplyFtrl": 7,
    "ResourceApplyFtrlV2": 7,
    "AssignVariableOp": 2,
    "AssignAddVariableOp": 3,
    "AssignSubVariableOp": 3,
}

# oneDNN's fast kernels normalize channels that lie last in whole blocks of 16 alone
# (src/cpu/x64/jit_uni_batch_normalization.cpp); others are a class of their own.
UNALIGNED = ".unaligned"
CHANNEL_BLOCK = 16
BATCH_NORMS = {
    op: "FusedBatchNormGrad" if "Grad" in op else "FusedBatchNorm"
    for op in ("FusedBatchNorm", "FusedBatchNormGrad", *table.BATCH_NORM_OPS)
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
