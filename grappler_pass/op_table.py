"""Which list each op is on, for bfloat16 and float16, and why: one row per op.

The placement starts from TensorFlow's own (auto_mixed_precision_lists.h) and differs
where bfloat16 has float32's range (Exp, Pow and squares are denied in float16 only),
where a long sum would lose its tail (denied in both), and by the fused ops that the
remapper makes before this pass runs. Functional control flow and calls are in no list:
their types belong to the functions they run.
"""

from __future__ import annotations

from typing import NamedTuple

ALLOW = "allow"
INFER = "infer"
DENY = "deny"
CLEAR = "clear"
LIST_NAMES = (ALLOW, INFER, DENY, CLEAR)


class OpRow(NamedTuple):
    """One op: its list for either dtype, and the reason for people to read.

    Attributes:
      op: name in TensorFlow's registry.
      bfloat16: its list where the low dtype is bfloat16; None for no list.
      float16: its list where the low dtype is float16; None for no list.
      reason: why it is there.
      reduces_gradients: its result is a gradient made by the backward pass, so a walk
        back from a variable's update ends here.
    """

    op: str
    bfloat16: str | None
    float16: str | None
    reason: str
    reduces_gradients: bool = False


_PRODUCT = "matrix product: 16-bit units, float32 accumulation"
_CONVOLUTION = "convolution: 16-bit units, float32 accumulation"
_RECURRENT = "recurrent kernel: matrix products inside"
_ARITHMETIC = "arithmetic: as exact as its operands"
_ACTIVATION = "activation: bounded slope"
_DIVISION = "division: as exact as its operands, unless one comes from a denied op"
_POOLING = "mean over a window: few terms"
_NORMALIZATION = "normalization: statistics stay in float32"
_LOGARITHM = "logarithm: magnifies an error of its operand near 1"
_BIAS = "gradient of a bias: one sum per channel"
_RANGE = "result leaves float16's range where bfloat16 holds it"
_LONG_SUM = "long reduction: small terms vanish beside the sum"
_LOSS = "loss: its sums and exponentials need float32"
_CHECKPOINT = "writes a checkpoint, whose dtypes must stay"
_ANY_UNARY = "may be any chain of unary functions, Exp among them"
_MOVEMENT = "moves values without changing them"
_SELECTION = "selects among its inputs' values"
_SIGN = "exact in any floating type"
_COMPARISON = "compares values; the result is not floating"
_SHAPE = "looks at the shape only"
_ROUNDING = "rounds to whole numbers"
_SCATTER = "moves values; sums few terms where indices repeat"
_CONTROL = "control flow: passes a value on"
_LIST = "tensor list: passes elements on"

OP_TABLE: tuple[OpRow, ...] = (
    # Matrix products.
    OpRow("MatMul", ALLOW, ALLOW, _PRODUCT),
    OpRow("BatchMatMul", ALLOW, ALLOW, _PRODUCT),
    OpRow("BatchMatMulV2", ALLOW, ALLOW, _PRODUCT),
    OpRow("BatchMatMulV3", ALLOW, ALLOW, _PRODUCT),
    OpRow("Einsum", ALLOW, ALLOW, _PRODUCT),
    OpRow("XlaDot", ALLOW, ALLOW, _PRODUCT),
    OpRow("XlaEinsum", ALLOW, ALLOW, _PRODUCT),
    OpRow("_FusedMatMul", ALLOW, ALLOW, _PRODUCT),
    OpRow("_MklFusedBatchMatMulV2", ALLOW, ALLOW, _PRODUCT),
    # Convolutions.
    OpRow("Conv", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv2D", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv2DBackpropFilter", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv2DBackpropFilterV2", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv2DBackpropInput", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv2DBackpropInputV2", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv3D", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv3DBackpropFilter", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv3DBackpropFilterV2", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv3DBackpropInput", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("Conv3DBackpropInputV2", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("DepthwiseConv2dNative", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("DepthwiseConv2dNativeBackpropFilter", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("DepthwiseConv2dNativeBackpropInput", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("FusedPadConv2D", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("FusedResizeAndPadConv2D", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("XlaConv", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("_FusedConv2D", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("_FusedConv3D", ALLOW, ALLOW, _CONVOLUTION),
    OpRow("_FusedDepthwiseConv2dNative", ALLOW, ALLOW, _CONVOLUTION),
    # Recurrent kernels.
    OpRow("BlockLSTM", ALLOW, ALLOW, _RECURRENT),
    OpRow("BlockLSTMGrad", ALLOW, ALLOW, _RECURRENT),
    OpRow("BlockLSTMGradV2", ALLOW, ALLOW, _RECURRENT),
    OpRow("BlockLSTMV2", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNN", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNBackprop", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNBackpropV2", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNBackpropV3", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNV2", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNV3", ALLOW, ALLOW, _RECURRENT),
    OpRow("GRUBlockCell", ALLOW, ALLOW, _RECURRENT),
    OpRow("GRUBlockCellGrad", ALLOW, ALLOW, _RECURRENT),
    OpRow("LSTMBlockCell", ALLOW, ALLOW, _RECURRENT),
    OpRow("LSTMBlockCellGrad", ALLOW, ALLOW, _RECURRENT),
    # Arithmetic.
    OpRow("Add", INFER, INFER, _ARITHMETIC),
    OpRow("AddN", INFER, INFER, _ARITHMETIC),
    OpRow("AddV2", INFER, INFER, _ARITHMETIC),
    OpRow("BiasAdd", INFER, INFER, _ARITHMETIC),
    OpRow("BiasAddV1", INFER, INFER, _ARITHMETIC),
    OpRow("Cross", INFER, INFER, _ARITHMETIC),
    OpRow("Mul", INFER, INFER, _ARITHMETIC),
    OpRow("MulNoNan", INFER, INFER, _ARITHMETIC),
    OpRow("Sub", INFER, INFER, _ARITHMETIC),
    OpRow("TensorScatterAdd", INFER, INFER, _ARITHMETIC),
    OpRow("TensorScatterSub", INFER, INFER, _ARITHMETIC),
    OpRow("BiasAddGrad", INFER, INFER, _BIAS, reduces_gradients=True),
    # Division and roots.
    OpRow("Div", INFER, INFER, _DIVISION),
    OpRow("DivNoNan", INFER, INFER, _DIVISION),
    OpRow("FloorDiv", INFER, INFER, _DIVISION),
    OpRow("FloorMod", INFER, INFER, _DIVISION),
    OpRow("Inv", INFER, INFER, _DIVISION),
    OpRow("InvGrad", INFER, DENY, _RANGE),
    OpRow("RealDiv", INFER, INFER, _DIVISION),
    OpRow("Reciprocal", INFER, INFER, _DIVISION),
    OpRow("ReciprocalGrad", INFER, DENY, _RANGE),
    OpRow("Rsqrt", INFER, DENY, _RANGE),
    OpRow("RsqrtGrad", INFER, DENY, _RANGE),
    OpRow("Sqrt", INFER, INFER, _DIVISION),
    OpRow("SqrtGrad", INFER, INFER, _DIVISION),
    # Activations.
    OpRow("Elu", INFER, INFER, _ACTIVATION),
    OpRow("EluGrad", INFER, INFER, _ACTIVATION),
    OpRow("Erf", INFER, INFER, _ACTIVATION),
    OpRow("Erfc", INFER, INFER, _ACTIVATION),
    OpRow("LeakyRelu", INFER, INFER, _ACTIVATION),
    OpRow("LeakyReluGrad", INFER, INFER, _ACTIVATION),
    OpRow("Log", INFER, INFER, _LOGARITHM),
    OpRow("Log1p", INFER, INFER, _LOGARITHM),
    OpRow("LogSoftmax", INFER, INFER, _LOGARITHM),
    OpRow("Selu", INFER, INFER, _ACTIVATION),
    OpRow("SeluGrad", INFER, INFER, _ACTIVATION),
    OpRow("Sigmoid", INFER, INFER, _ACTIVATION),
    OpRow("SigmoidGrad", INFER, INFER, _ACTIVATION),
    OpRow("Softmax", INFER, INFER, _ACTIVATION),
    OpRow("Softplus", INFER, INFER, _ACTIVATION),
    OpRow("SoftplusGrad", INFER, INFER, _ACTIVATION),
    OpRow("Softsign", INFER, INFER, _ACTIVATION),
    OpRow("SoftsignGrad", INFER, INFER, _ACTIVATION),
    OpRow("Tanh", INFER, INFER, _ACTIVATION),
    OpRow("TanhGrad", INFER, INFER, _ACTIVATION),
    OpRow("_MklFusedMish", INFER, INFER, _ACTIVATION),
    OpRow("_MklSwish", INFER, INFER, _ACTIVATION),
    # Normalization, pooling, resizing.
    OpRow("AvgPool", INFER, INFER, _POOLING),
    OpRow("AvgPool3D", INFER, INFER, _POOLING),
    OpRow("AvgPool3DGrad", INFER, INFER, _POOLING),
    OpRow("AvgPoolGrad", INFER, INFER, _POOLING),
    OpRow("FusedBatchNormGradV2", INFER, INFER, _NORMALIZATION, True),
    OpRow("FusedBatchNormGradV3", INFER, INFER, _NORMALIZATION, True),
    OpRow("FusedBatchNormV2", INFER, INFER, _NORMALIZATION),
    OpRow("FusedBatchNormV3", INFER, INFER, _NORMALIZATION),
    OpRow("LRN", INFER, DENY, _RANGE),
    OpRow("LRNGrad", INFER, DENY, _RANGE),
    OpRow("ResizeBilinear", INFER, INFER, _POOLING),
    OpRow("ResizeBilinearGrad", INFER, INFER, _POOLING),
    OpRow("_FusedBatchNormEx", INFER, INFER, _NORMALIZATION),
    OpRow("_FusedBatchNormGradEx", INFER, INFER, _NORMALIZATION, True),
    OpRow("_MklFusedInstanceNorm", INFER, INFER, _NORMALIZATION),
    OpRow("_MklLayerNorm", INFER, INFER, _NORMALIZATION),
    # Range hazards: float16 ends at 65504.
    OpRow("Exp", INFER, DENY, _RANGE),
    OpRow("Expm1", INFER, DENY, _RANGE),
    OpRow("Pow", INFER, DENY, _RANGE),
    OpRow("Square", INFER, DENY, _RANGE),
    OpRow("SquaredDifference", INFER, DENY, _RANGE),
    # Long reductions and losses.
    OpRow("Cumprod", DENY, DENY, _LONG_SUM),
    OpRow("Cumsum", DENY, DENY, _LONG_SUM),
    OpRow("CumulativeLogsumexp", DENY, DENY, _LONG_SUM),
    OpRow("EuclideanNorm", DENY, DENY, _LONG_SUM),
    OpRow("L2Loss", DENY, DENY, _LONG_SUM),
    OpRow("Mean", DENY, DENY, _LONG_SUM),
    OpRow("Prod", DENY, DENY, _LONG_SUM),
    OpRow("SaveV2", DENY, DENY, _CHECKPOINT),
    OpRow("SegmentMean", DENY, DENY, _LONG_SUM),
    OpRow("SegmentProd", DENY, DENY, _LONG_SUM),
    OpRow("SegmentSum", DENY, DENY, _LONG_SUM),
    OpRow("SoftmaxCrossEntropyWithLogits", DENY, DENY, _LOSS),
    OpRow("SparseSegmentMean", DENY, DENY, _LONG_SUM),
    OpRow("SparseSegmentSum", DENY, DENY, _LONG_SUM),
    OpRow("SparseSoftmaxCrossEntropyWithLogits", DENY, DENY, _LOSS),
    OpRow("Sum", DENY, DENY, _LONG_SUM),
    OpRow("UnsortedSegmentProd", DENY, DENY, _LONG_SUM),
    OpRow("UnsortedSegmentSum", DENY, DENY, _LONG_SUM),
    OpRow("_UnaryOpsComposition", DENY, DENY, _ANY_UNARY),
    # Exact in any floating type.
    OpRow("Abs", CLEAR, CLEAR, _SIGN),
    OpRow("Neg", CLEAR, CLEAR, _SIGN),
    OpRow("OnesLike", CLEAR, CLEAR, _SIGN),
    OpRow("Relu", CLEAR, CLEAR, _SIGN),
    OpRow("Relu6", CLEAR, CLEAR, _SIGN),
    OpRow("Relu6Grad", CLEAR, CLEAR, _SIGN),
    OpRow("ReluGrad", CLEAR, CLEAR, _SIGN),
    OpRow("Sign", CLEAR, CLEAR, _SIGN),
    OpRow("ZerosLike", CLEAR, CLEAR, _SIGN),
    OpRow("Ceil", CLEAR, CLEAR, _ROUNDING),
    OpRow("Floor", CLEAR, CLEAR, _ROUNDING),
    OpRow("Rint", CLEAR, CLEAR, _ROUNDING),
    OpRow("Round", CLEAR, CLEAR, _ROUNDING),
    # Selection.
    OpRow("ClipByValue", CLEAR, CLEAR, _SELECTION),
    OpRow("Max", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPool", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPool3D", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPool3DGrad", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPool3DGradGrad", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPoolGrad", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPoolGradGrad", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPoolGradGradV2", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPoolGradV2", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPoolGradWithArgmax", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPoolV2", CLEAR, CLEAR, _SELECTION),
    OpRow("MaxPoolWithArgmax", CLEAR, CLEAR, _SELECTION),
    OpRow("Maximum", CLEAR, CLEAR, _SELECTION),
    OpRow("Min", CLEAR, CLEAR, _SELECTION),
    OpRow("Minimum", CLEAR, CLEAR, _SELECTION),
    OpRow("SegmentMax", CLEAR, CLEAR, _SELECTION),
    OpRow("SegmentMin", CLEAR, CLEAR, _SELECTION),
    OpRow("Select", CLEAR, CLEAR, _SELECTION),
    OpRow("SelectV2", CLEAR, CLEAR, _SELECTION),
    OpRow("TopK", CLEAR, CLEAR, _SELECTION),
    OpRow("TopKV2", CLEAR, CLEAR, _SELECTION),
    OpRow("UnsortedSegmentMax", CLEAR, CLEAR, _SELECTION),
    OpRow("UnsortedSegmentMin", CLEAR, CLEAR, _SELECTION),
    # Comparisons and shapes.
    OpRow("ArgMax", CLEAR, CLEAR, _COMPARISON),
    OpRow("ArgMin", CLEAR, CLEAR, _COMPARISON),
    OpRow("Equal", CLEAR, CLEAR, _COMPARISON),
    OpRow("Greater", CLEAR, CLEAR, _COMPARISON),
    OpRow("GreaterEqual", CLEAR, CLEAR, _COMPARISON),
    OpRow("IsFinite", CLEAR, CLEAR, _COMPARISON),
    OpRow("IsInf", CLEAR, CLEAR, _COMPARISON),
    OpRow("IsNan", CLEAR, CLEAR, _COMPARISON),
    OpRow("Less", CLEAR, CLEAR, _COMPARISON),
    OpRow("LessEqual", CLEAR, CLEAR, _COMPARISON),
    OpRow("NotEqual", CLEAR, CLEAR, _COMPARISON),
    OpRow("Where", CLEAR, CLEAR, _COMPARISON),
    OpRow("Rank", CLEAR, CLEAR, _SHAPE),
    OpRow("Shape", CLEAR, CLEAR, _SHAPE),
    OpRow("ShapeN", CLEAR, CLEAR, _SHAPE),
    OpRow("Size", CLEAR, CLEAR, _SHAPE),
    # Data movement.
    OpRow("BatchToSpace", CLEAR, CLEAR, _MOVEMENT),
    OpRow("BatchToSpaceND", CLEAR, CLEAR, _MOVEMENT),
    OpRow("BroadcastTo", CLEAR, CLEAR, _MOVEMENT),
    OpRow("CheckNumerics", CLEAR, CLEAR, _MOVEMENT),
    OpRow("CheckNumericsV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Concat", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ConcatV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ConjugateTranspose", CLEAR, CLEAR, _MOVEMENT),
    OpRow("DepthToSpace", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Diag", CLEAR, CLEAR, _MOVEMENT),
    OpRow("DiagPart", CLEAR, CLEAR, _MOVEMENT),
    OpRow("DynamicPartition", CLEAR, CLEAR, _MOVEMENT),
    OpRow("DynamicStitch", CLEAR, CLEAR, _MOVEMENT),
    OpRow("EnsureShape", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ExpandDims", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ExtractImagePatches", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ExtractVolumePatches", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Fill", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Gather", CLEAR, CLEAR, _MOVEMENT),
    OpRow("GatherNd", CLEAR, CLEAR, _MOVEMENT),
    OpRow("GatherV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Identity", CLEAR, CLEAR, _MOVEMENT),
    OpRow("IdentityN", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixBandPart", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixDiag", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixDiagPart", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixDiagPartV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixDiagPartV3", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixDiagV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixDiagV3", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixSetDiag", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixSetDiagV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MatrixSetDiagV3", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MirrorPad", CLEAR, CLEAR, _MOVEMENT),
    OpRow("MirrorPadGrad", CLEAR, CLEAR, _SCATTER),
    OpRow("OneHot", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Pack", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Pad", CLEAR, CLEAR, _MOVEMENT),
    OpRow("PadV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ParallelConcat", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ParallelDynamicStitch", CLEAR, CLEAR, _MOVEMENT),
    OpRow("PreventGradient", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Reshape", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ResizeNearestNeighbor", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ResizeNearestNeighborGrad", CLEAR, CLEAR, _SCATTER),
    OpRow("Reverse", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ReverseSequence", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ReverseV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Roll", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ScatterNd", CLEAR, CLEAR, _SCATTER),
    OpRow("Slice", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Snapshot", CLEAR, CLEAR, _MOVEMENT),
    OpRow("SpaceToBatch", CLEAR, CLEAR, _MOVEMENT),
    OpRow("SpaceToBatchND", CLEAR, CLEAR, _MOVEMENT),
    OpRow("SpaceToDepth", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Split", CLEAR, CLEAR, _MOVEMENT),
    OpRow("SplitV", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Squeeze", CLEAR, CLEAR, _MOVEMENT),
    OpRow("StopGradient", CLEAR, CLEAR, _MOVEMENT),
    OpRow("StridedSlice", CLEAR, CLEAR, _MOVEMENT),
    OpRow("StridedSliceGrad", CLEAR, CLEAR, _MOVEMENT),
    OpRow("TensorScatterUpdate", CLEAR, CLEAR, _MOVEMENT),
    OpRow("TensorStridedSliceUpdate", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Tile", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Transpose", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Unpack", CLEAR, CLEAR, _MOVEMENT),
    # Lowered control flow. Ref* ops pass a variable itself on: its type is fixed.
    OpRow("Enter", CLEAR, CLEAR, _CONTROL),
    OpRow("Exit", CLEAR, CLEAR, _CONTROL),
    OpRow("Merge", CLEAR, CLEAR, _CONTROL),
    OpRow("NextIteration", CLEAR, CLEAR, _CONTROL),
    OpRow("Switch", CLEAR, CLEAR, _CONTROL),
    OpRow("_SwitchN", CLEAR, CLEAR, _CONTROL),
    OpRow("_XlaMerge", CLEAR, CLEAR, _CONTROL),
    # Lists and stacks of tensors; all readers and writers of one list share a color.
    OpRow("EmptyTensorList", CLEAR, CLEAR, _LIST),
    OpRow("StackPopV2", CLEAR, CLEAR, _LIST),
    OpRow("StackPushV2", CLEAR, CLEAR, _LIST),
    OpRow("StackV2", CLEAR, CLEAR, _LIST),
    OpRow("TensorArrayConcatV3", CLEAR, CLEAR, _LIST),
    OpRow("TensorArrayGatherV3", CLEAR, CLEAR, _LIST),
    OpRow("TensorArrayReadV3", CLEAR, CLEAR, _LIST),
    OpRow("TensorArrayScatterV3", CLEAR, CLEAR, _LIST),
    OpRow("TensorArraySplitV3", CLEAR, CLEAR, _LIST),
    OpRow("TensorArrayV3", CLEAR, CLEAR, _LIST),
    OpRow("TensorArrayWriteV3", CLEAR, CLEAR, _LIST),
    OpRow("TensorListConcat", CLEAR, CLEAR, _LIST),
    OpRow("TensorListConcatLists", CLEAR, CLEAR, _LIST),
    OpRow("TensorListConcatV2", CLEAR, CLEAR, _LIST),
    OpRow("TensorListFromTensor", CLEAR, CLEAR, _LIST),
    OpRow("TensorListGather", CLEAR, CLEAR, _LIST),
    OpRow("TensorListGetItem", CLEAR, CLEAR, _LIST),
    OpRow("TensorListPopBack", CLEAR, CLEAR, _LIST),
    OpRow("TensorListPushBack", CLEAR, CLEAR, _LIST),
    OpRow("TensorListPushBackBatch", CLEAR, CLEAR, _LIST),
    OpRow("TensorListReserve", CLEAR, CLEAR, _LIST),
    OpRow("TensorListScatter", CLEAR, CLEAR, _LIST),
    OpRow("TensorListScatterIntoExistingList", CLEAR, CLEAR, _LIST),
    OpRow("TensorListScatterV2", CLEAR, CLEAR, _LIST),
    OpRow("TensorListSetItem", CLEAR, CLEAR, _LIST),
    OpRow("TensorListSplit", CLEAR, CLEAR, _LIST),
    OpRow("TensorListStack", CLEAR, CLEAR, _LIST),
)
