"""The classes that prices are kept in: which ops share one, and what their axes are.

One row per class. A profile holds a grid of seconds over the axes named here; an op
that is in no row is priced by the roofline.
"""

from __future__ import annotations

from grappler_pass.graph import op_table as table

# Of ops that are in no row.
ANY_OP = "elementwise"

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


def _classes(*rows: str) -> dict[str, str]:
    """Return the class of each op: a row is a class, called after its first op."""
    return {op: row.split()[0] for row in rows for op in row.split()}


# Elementwise ops whose seconds follow from the larger tensor's elements.
ELEMENTWISE = _classes(
    *"""
    Elu EluGrad Erf Exp L2Loss LeakyRelu Pow Relu Rsqrt RsqrtGrad Selu SeluGrad Sigmoid
    SigmoidGrad Softplus SoftplusGrad Softsign SoftsignGrad Sqrt Square
    SquaredDifference Tanh TanhGrad
    """.split(),
    "AddV2 Add Sub Maximum Minimum",
    "Mul MulNoNan",
    "RealDiv Div DivNoNan Xdivy TruncateDiv",
    "Greater GreaterEqual Less LessEqual Equal NotEqual ApproximateEqual",
    "SelectV2 Select",
    "Neg Abs Sign",
    "Floor Ceil Round Rint",
    "Relu6 ClipByValue",
    "ReluGrad Relu6Grad LeakyReluGrad",
    "Log1p Xlog1py",
    "Erfc Erfinv Ndtri",
    "Expm1 Sinh Cosh",
    "Sin Cos",
    "Log Xlogy",
    "SqrtGrad ReciprocalGrad InvGrad",
    "Reciprocal Inv",
    "IsFinite IsNan IsInf",
    "_MklSwish _FusedSwish _MklFusedMish",
    "RandomUniform StatelessRandomUniformV2 StatelessRandomUniform TruncatedNormal "
    "RandomStandardNormal StatelessRandomNormalV2 StatelessTruncatedNormalV2 "
    "ParameterizedTruncatedNormal",
)
# Binary classes measured with one operand broadcast: along rows, columns, or a scalar.
BROADCAST_CLASSES = frozenset({"AddV2", "Mul", "RealDiv"})
BROADCASTS = ("row", "column", "scalar")

# Data movement: seconds follow from the elements written.
MOVEMENT = _classes(
    "Transpose ConjugateTranspose",
    "ConcatV2 Concat Pack DeepCopy ParallelDynamicStitch DynamicStitch TensorListStack "
    "TensorListConcatV2 TensorArrayGatherV3 TensorArrayConcatV3",
    "Slice StridedSlice Split SplitV Unpack TensorListFromTensor TensorListSplit "
    "TensorArrayScatterV3 TensorArraySplitV3",
    "Pad PadV2 MirrorPad StridedSliceGrad MirrorPadGrad",
    "Tile BroadcastTo Fill OnesLike ZerosLike",
    "ReverseV2 Roll ReverseSequence",
    "DepthToSpace SpaceToDepth BatchToSpaceND SpaceToBatchND",
)

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

REDUCTIONS = _classes("Sum Mean EuclideanNorm Prod", "Max Min")
REDUCED = ("inner", "outer")

SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
CROSS_ENTROPY = frozenset(
    {"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
)

MATMULS = frozenset({"MatMul", "_FusedMatMul", "SparseMatMul", "_MklMatMul"})
BATCH_MATMULS = frozenset(
    """
    BatchMatMul BatchMatMulV2 BatchMatMulV3 _MklBatchMatMulV2 _MklFusedBatchMatMulV2
    """.split()
)

# What a batched product takes longer for a bias of columns, as a part of its kernel.
BATCHED_BIAS = "fused.batched.BiasAdd"

DIRECTIONS = ("forward", "input_gradient", "filter_gradient")


_CONVOLUTIONS = {
    op: ("input_gradient" if "Input" in op else "filter_gradient")
    if "Backprop" in op
    else "forward"
    for op in sorted(table.CONVOLUTION_OPS)
}
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
UPDATES = {
    op: tensors
    for tensors, ops in {
        2: "AssignVariableOp",
        3: "ResourceApplyGradientDescent AssignAddVariableOp AssignSubVariableOp",
        5: """ResourceApplyMomentum ResourceApplyKerasMomentum ResourceApplyAdagrad
        ResourceApplyAdagradV2""",
        7: """ResourceApplyRMSProp ResourceApplyAdam ResourceApplyAdaMax
        ResourceApplyAdadelta ResourceApplyFtrl ResourceApplyFtrlV2""",
        9: "ResourceApplyAdamWithAmsgrad ResourceApplyCenteredRMSProp",
    }.items()
    for op in ops.split()
}

# oneDNN's fast kernels normalize channels that lie last in whole blocks of 16 alone
# (src/cpu/x64/jit_uni_batch_normalization.cpp); others are a class of their own.
UNALIGNED = ".unaligned"
CHANNEL_BLOCK = 16
BATCH_NORMS = {
    op: "FusedBatchNormGrad" if "Grad" in op else "FusedBatchNorm"
    for op in ("FusedBatchNorm", "FusedBatchNormGrad", *table.BATCH_NORM_OPS)
}
POOLS = frozenset({"MaxPool", "AvgPool", "MaxPoolGrad", "AvgPoolGrad"})

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
    "pool": ("elements", "window"),
    **dict.fromkeys(
        """
        Softmax LogSoftmax cross_entropy gather segment BiasAdd BiasAddGrad
        FusedBatchNorm FusedBatchNormGrad LayerNorm
        """.split(),
        ROWS,
    ),
}
