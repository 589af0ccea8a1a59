"""What is known of ops by their names: their lists, and facts true whoever asks.

`OP_TABLE` says which list each op is on, for bfloat16 and float16, and why: one row per
op. Below it are the facts: who needs a list of ops composes it of these, so that a new
op is added here alone.

The placement starts from TensorFlow's own (auto_mixed_precision_lists.h) and differs
where bfloat16 has float32's range (Exp, Pow and squares are denied in float16 only),
where a long sum would lose its tail (denied in both), and by the fused ops that the
remapper makes before this pass runs. Functional control flow and calls are in no list:
their types belong to the functions they run.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from grappler_pass.graph.fusions import ROOTS

ALLOW = "allow"
INFER = "infer"
DENY = "deny"
CLEAR = "clear"
LIST_NAMES = (ALLOW, INFER, DENY, CLEAR)


class Errors(enum.Enum):
    """What an op makes of the rounding errors of what it reads.

    Whether an intermediate value may be in 16 bits hangs on this: `eligibility`'s
    `product_errors` and `roundings` know how.
    """

    PRODUCT = "sums products of its operands, which anybody would round for it"
    MOVES = "hands them on as they are"
    SCALES = "keeps relative errors: the result is as exact as the worst factor"
    SUMS = "adds absolute errors, beside which a small result may vanish"
    ACTIVATES = "bounded slope: keeps absolute errors, whatever is left of the value"
    AVERAGES = "takes means of few values"
    NORMALIZES = "subtracts a mean and divides by a deviation"
    GRADIENT = "linear in the gradient that it reads, the only one it hands on"
    REDUCES = "sums many values, float32 throughout"
    MAGNIFIES = "magnifies errors of what is near 1, or of many factors"
    JUMPS = "makes another outcome of the smallest error at a threshold"
    IGNORES = "looks at no value"


class Others(enum.Enum):
    """What an op that hands a gradient on makes of its other operands."""

    SIGN = "looks at signs, or at which element is the largest"
    SMOOTH = "multiplies by a function as exact as they are"
    CANCELS = "subtracts them from 1"


class _Why(NamedTuple):
    """Why an op is on its lists, for people, and what it makes of errors."""

    text: str
    errors: Errors | None
    others: Others | None = None


class OpRow(NamedTuple):
    """One op: its list for either dtype, and the reason for people to read.

    Attributes:
      op: name in TensorFlow's registry.
      bfloat16: its list where the low dtype is bfloat16; None for no list.
      float16: its list where the low dtype is float16; None for no list.
      why: it is there, and what it makes of rounding errors.
    """

    op: str
    bfloat16: str | None
    float16: str | None
    why: _Why


_PRODUCT = _Why("matrix product: 16-bit units, float32 accumulation", Errors.PRODUCT)
_CONVOLUTION = _Why("convolution: 16-bit units, float32 accumulation", Errors.PRODUCT)
_RECURRENT = _Why("recurrent kernel: matrix products inside", Errors.PRODUCT)
# Over 500 steps with the forget gate nearly open these have up to 15 times the error of
# casts by hand; 2.3 times where the state alone is rounded, as cuDNN does.
_RECURRENT_STEP = _Why(
    "recurrent kernel: its gates and its state would be in 16 bits between steps",
    Errors.PRODUCT,
)
_SUM = _Why("sum: as exact as its operands, unless they cancel", Errors.SUMS)
_FACTOR = _Why("product of numbers: as exact as its operands", Errors.SCALES)
_DIVISION = _Why(
    "division: as exact as its operands, unless one comes from a denied op",
    Errors.SCALES,
)
_DIVISION_GRADIENT = _Why(
    "gradient of a division or root: as exact as its operands",
    Errors.GRADIENT,
    Others.SMOOTH,
)
_REMAINDER = _Why("rounds a quotient to whole numbers", Errors.JUMPS)
_ACTIVATION = _Why("activation: bounded slope", Errors.ACTIVATES)
_LINEAR = _Why("piecewise linear: as exact as its operand", Errors.MOVES)
_SLOPE = "gradient of an activation: bounded slope"
_ACTIVATION_GRADIENT = _Why(_SLOPE, Errors.GRADIENT, Others.CANCELS)
_SMOOTH_GRADIENT = _Why(_SLOPE, Errors.GRADIENT, Others.SMOOTH)
_LINEAR_GRADIENT = _Why(_SLOPE, Errors.GRADIENT, Others.SIGN)
_POOLING = _Why("mean over a window: few terms", Errors.AVERAGES)
_POOLING_GRADIENT = _Why(
    "gradient of a mean over a window: few terms", Errors.GRADIENT, Others.SIGN
)
_NORMALIZATION = _Why("normalization: statistics stay in float32", Errors.NORMALIZES)
_NORMALIZATION_GRADIENT = _Why(
    "gradient of a normalization: statistics stay in float32",
    Errors.GRADIENT,
    Others.SMOOTH,
)
_LOGARITHM = _Why(
    "logarithm: magnifies an error of its operand near 1", Errors.MAGNIFIES
)
_BIAS = _Why("gradient of a bias: one sum per channel", Errors.REDUCES)
_RANGE = "result leaves float16's range where bfloat16 holds it"
_RANGE_FACTOR = _Why(_RANGE, Errors.SCALES)
_RANGE_GRADIENT = _Why(_RANGE, Errors.GRADIENT, Others.SMOOTH)
_RANGE_POWER = _Why(_RANGE, Errors.MAGNIFIES)
_RANGE_DIFFERENCE = _Why(_RANGE, Errors.SUMS)
_RANGE_NORMALIZATION = _Why(_RANGE, Errors.NORMALIZES)
_LONG_SUM = _Why("long reduction: small terms vanish beside the sum", Errors.REDUCES)
_LONG_PRODUCT = _Why(
    "long product: magnifies the errors of its factors", Errors.MAGNIFIES
)
_LOSS = _Why("loss: its sums and exponentials need float32", Errors.REDUCES)
_CHECKPOINT = _Why("writes a checkpoint, whose dtypes must stay", None)
_ANY_UNARY = _Why("may be any chain of unary functions, Exp among them", None)
_MOVES = "moves values without changing them"
_MOVEMENT = _Why(_MOVES, Errors.MOVES)
_VIEW = _Why(_MOVES, Errors.MOVES)
_IDENTITY = _Why(_MOVES, Errors.MOVES)
_SELECTS = "selects among its inputs' values"
_SELECTION = _Why(_SELECTS, Errors.MOVES)
_EXTREME = _Why(_SELECTS, Errors.MOVES)
_SELECTED = "gradient of a selection: moves values"
_SELECTION_GRADIENT = _Why(_SELECTED, Errors.GRADIENT, Others.SIGN)
_EXTREME_GRADIENT = _Why(_SELECTED, Errors.GRADIENT, Others.SIGN)
_SIGN = _Why("exact in any floating type", Errors.MOVES)
_SIGN_GRADIENT = _Why(
    "gradient that looks at a sign only", Errors.GRADIENT, Others.SIGN
)
_LIKE = _Why("looks at the shape only", Errors.IGNORES)
_COMPARES = "compares values; the result is not floating"
_COMPARISON = _Why(_COMPARES, Errors.JUMPS)
_QUESTION = _Why(_COMPARES, Errors.JUMPS)
_SHAPE = _Why("looks at the shape only", Errors.IGNORES)
_ROUNDING = _Why("rounds to whole numbers", Errors.JUMPS)
_RANK = _Why("ranks values; the order jumps", Errors.JUMPS)
_SCATTER = _Why("moves values; sums few terms where indices repeat", Errors.REDUCES)
_CONTROL = _Why("control flow: passes a value on", Errors.MOVES)
_LIST = _Why("tensor list: passes elements on", Errors.MOVES)

_ROWS: tuple[OpRow, ...] = (
    # Matrix products.
    OpRow("MatMul", ALLOW, ALLOW, _PRODUCT),
    OpRow("BatchMatMul", ALLOW, ALLOW, _PRODUCT),
    OpRow("BatchMatMulV2", ALLOW, ALLOW, _PRODUCT),
    OpRow("BatchMatMulV3", ALLOW, ALLOW, _PRODUCT),
    OpRow("Einsum", ALLOW, ALLOW, _PRODUCT),
    OpRow("XlaDot", ALLOW, ALLOW, _PRODUCT),
    OpRow("XlaEinsum", ALLOW, ALLOW, _PRODUCT),
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
    # Recurrent kernels.
    OpRow("BlockLSTM", DENY, DENY, _RECURRENT_STEP),
    OpRow("BlockLSTMGrad", DENY, DENY, _RECURRENT_STEP),
    OpRow("BlockLSTMGradV2", DENY, DENY, _RECURRENT_STEP),
    OpRow("BlockLSTMV2", DENY, DENY, _RECURRENT_STEP),
    OpRow("CudnnRNN", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNBackprop", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNBackpropV2", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNBackpropV3", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNV2", ALLOW, ALLOW, _RECURRENT),
    OpRow("CudnnRNNV3", ALLOW, ALLOW, _RECURRENT),
    OpRow("GRUBlockCell", DENY, DENY, _RECURRENT_STEP),
    OpRow("GRUBlockCellGrad", DENY, DENY, _RECURRENT_STEP),
    OpRow("LSTMBlockCell", DENY, DENY, _RECURRENT_STEP),
    OpRow("LSTMBlockCellGrad", DENY, DENY, _RECURRENT_STEP),
    # Arithmetic.
    OpRow("Add", INFER, INFER, _SUM),
    OpRow("AddN", INFER, INFER, _SUM),
    OpRow("AddV2", INFER, INFER, _SUM),
    OpRow("BiasAdd", INFER, INFER, _SUM),
    OpRow("BiasAddV1", INFER, INFER, _SUM),
    OpRow("Cross", INFER, INFER, _SUM),
    OpRow("Mul", INFER, INFER, _FACTOR),
    OpRow("MulNoNan", INFER, INFER, _FACTOR),
    OpRow("Sub", INFER, INFER, _SUM),
    OpRow("TensorScatterAdd", INFER, INFER, _SCATTER),
    OpRow("TensorScatterSub", INFER, INFER, _SCATTER),
    OpRow("BiasAddGrad", INFER, INFER, _BIAS),
    # Division and roots.
    OpRow("Div", INFER, INFER, _DIVISION),
    OpRow("DivNoNan", INFER, INFER, _DIVISION),
    OpRow("FloorDiv", INFER, INFER, _REMAINDER),
    OpRow("FloorMod", INFER, INFER, _REMAINDER),
    OpRow("Inv", INFER, INFER, _DIVISION),
    OpRow("InvGrad", INFER, DENY, _RANGE_GRADIENT),
    OpRow("RealDiv", INFER, INFER, _DIVISION),
    OpRow("Reciprocal", INFER, INFER, _DIVISION),
    OpRow("ReciprocalGrad", INFER, DENY, _RANGE_GRADIENT),
    OpRow("Rsqrt", INFER, DENY, _RANGE_FACTOR),
    OpRow("RsqrtGrad", INFER, DENY, _RANGE_GRADIENT),
    OpRow("Sqrt", INFER, INFER, _DIVISION),
    OpRow("SqrtGrad", INFER, INFER, _DIVISION_GRADIENT),
    # Activations.
    OpRow("Elu", INFER, INFER, _ACTIVATION),
    OpRow("EluGrad", INFER, INFER, _ACTIVATION_GRADIENT),
    OpRow("Erf", INFER, INFER, _ACTIVATION),
    OpRow("Erfc", INFER, INFER, _ACTIVATION),
    OpRow("LeakyRelu", INFER, INFER, _LINEAR),
    OpRow("LeakyReluGrad", INFER, INFER, _LINEAR_GRADIENT),
    OpRow("Log", INFER, INFER, _LOGARITHM),
    OpRow("Log1p", INFER, INFER, _LOGARITHM),
    OpRow("LogSoftmax", INFER, INFER, _LOGARITHM),
    OpRow("Selu", INFER, INFER, _ACTIVATION),
    OpRow("SeluGrad", INFER, INFER, _ACTIVATION_GRADIENT),
    OpRow("Sigmoid", INFER, INFER, _ACTIVATION),
    OpRow("SigmoidGrad", INFER, INFER, _ACTIVATION_GRADIENT),
    OpRow("Softmax", INFER, INFER, _ACTIVATION),
    OpRow("Softplus", INFER, INFER, _ACTIVATION),
    OpRow("SoftplusGrad", INFER, INFER, _SMOOTH_GRADIENT),
    OpRow("Softsign", INFER, INFER, _ACTIVATION),
    OpRow("SoftsignGrad", INFER, INFER, _SMOOTH_GRADIENT),
    OpRow("Tanh", INFER, INFER, _ACTIVATION),
    OpRow("TanhGrad", INFER, INFER, _ACTIVATION_GRADIENT),
    OpRow("_MklFusedMish", INFER, INFER, _ACTIVATION),
    OpRow("_MklSwish", INFER, INFER, _ACTIVATION),
    # Normalization, pooling, resizing.
    OpRow("AvgPool", INFER, INFER, _POOLING),
    OpRow("AvgPool3D", INFER, INFER, _POOLING),
    OpRow("AvgPool3DGrad", INFER, INFER, _POOLING_GRADIENT),
    OpRow("AvgPoolGrad", INFER, INFER, _POOLING_GRADIENT),
    OpRow("FusedBatchNormGradV2", INFER, INFER, _NORMALIZATION_GRADIENT),
    OpRow("FusedBatchNormGradV3", INFER, INFER, _NORMALIZATION_GRADIENT),
    OpRow("FusedBatchNormV2", INFER, INFER, _NORMALIZATION),
    OpRow("FusedBatchNormV3", INFER, INFER, _NORMALIZATION),
    OpRow("LRN", INFER, DENY, _RANGE_NORMALIZATION),
    OpRow("LRNGrad", INFER, DENY, _RANGE_GRADIENT),
    OpRow("ResizeBilinear", INFER, INFER, _POOLING),
    OpRow("ResizeBilinearGrad", INFER, INFER, _POOLING_GRADIENT),
    OpRow("_MklFusedInstanceNorm", INFER, INFER, _NORMALIZATION),
    OpRow("_MklLayerNorm", INFER, INFER, _NORMALIZATION),
    # Range hazards: float16 ends at 65504.
    OpRow("Exp", INFER, DENY, _RANGE_POWER),
    OpRow("Expm1", INFER, DENY, _RANGE_POWER),
    OpRow("Pow", INFER, DENY, _RANGE_POWER),
    OpRow("Square", INFER, DENY, _RANGE_FACTOR),
    OpRow("SquaredDifference", INFER, DENY, _RANGE_DIFFERENCE),
    # Long reductions and losses.
    OpRow("Cumprod", DENY, DENY, _LONG_PRODUCT),
    OpRow("Cumsum", DENY, DENY, _LONG_SUM),
    OpRow("CumulativeLogsumexp", DENY, DENY, _LONG_SUM),
    OpRow("EuclideanNorm", DENY, DENY, _LONG_SUM),
    OpRow("L2Loss", DENY, DENY, _LONG_SUM),
    OpRow("Mean", DENY, DENY, _LONG_SUM),
    OpRow("Prod", DENY, DENY, _LONG_PRODUCT),
    OpRow("SaveV2", DENY, DENY, _CHECKPOINT),
    OpRow("SegmentMean", DENY, DENY, _LONG_SUM),
    OpRow("SegmentProd", DENY, DENY, _LONG_PRODUCT),
    OpRow("SegmentSum", DENY, DENY, _LONG_SUM),
    OpRow("SoftmaxCrossEntropyWithLogits", DENY, DENY, _LOSS),
    OpRow("SparseSegmentMean", DENY, DENY, _LONG_SUM),
    OpRow("SparseSegmentSum", DENY, DENY, _LONG_SUM),
    OpRow("SparseSoftmaxCrossEntropyWithLogits", DENY, DENY, _LOSS),
    OpRow("Sum", DENY, DENY, _LONG_SUM),
    OpRow("UnsortedSegmentProd", DENY, DENY, _LONG_PRODUCT),
    OpRow("UnsortedSegmentSum", DENY, DENY, _LONG_SUM),
    OpRow("_UnaryOpsComposition", DENY, DENY, _ANY_UNARY),
    # Exact in any floating type.
    OpRow("Abs", CLEAR, CLEAR, _SIGN),
    OpRow("Neg", CLEAR, CLEAR, _SIGN),
    OpRow("OnesLike", CLEAR, CLEAR, _LIKE),
    OpRow("Relu", CLEAR, CLEAR, _SIGN),
    OpRow("Relu6", CLEAR, CLEAR, _SIGN),
    OpRow("Relu6Grad", CLEAR, CLEAR, _SIGN_GRADIENT),
    OpRow("ReluGrad", CLEAR, CLEAR, _SIGN_GRADIENT),
    OpRow("Sign", CLEAR, CLEAR, _SIGN),
    OpRow("ZerosLike", CLEAR, CLEAR, _LIKE),
    OpRow("Ceil", CLEAR, CLEAR, _ROUNDING),
    OpRow("Floor", CLEAR, CLEAR, _ROUNDING),
    OpRow("Rint", CLEAR, CLEAR, _ROUNDING),
    OpRow("Round", CLEAR, CLEAR, _ROUNDING),
    # Selection.
    OpRow("ClipByValue", CLEAR, CLEAR, _SELECTION),
    OpRow("Max", CLEAR, CLEAR, _EXTREME),
    OpRow("MaxPool", CLEAR, CLEAR, _EXTREME),
    OpRow("MaxPool3D", CLEAR, CLEAR, _EXTREME),
    OpRow("MaxPool3DGrad", CLEAR, CLEAR, _EXTREME_GRADIENT),
    OpRow("MaxPool3DGradGrad", CLEAR, CLEAR, _EXTREME_GRADIENT),
    OpRow("MaxPoolGrad", CLEAR, CLEAR, _EXTREME_GRADIENT),
    OpRow("MaxPoolGradGrad", CLEAR, CLEAR, _EXTREME_GRADIENT),
    OpRow("MaxPoolGradGradV2", CLEAR, CLEAR, _EXTREME_GRADIENT),
    OpRow("MaxPoolGradV2", CLEAR, CLEAR, _EXTREME_GRADIENT),
    OpRow("MaxPoolGradWithArgmax", CLEAR, CLEAR, _SELECTION_GRADIENT),
    OpRow("MaxPoolV2", CLEAR, CLEAR, _EXTREME),
    OpRow("MaxPoolWithArgmax", CLEAR, CLEAR, _RANK),
    OpRow("Maximum", CLEAR, CLEAR, _EXTREME),
    OpRow("Min", CLEAR, CLEAR, _EXTREME),
    OpRow("Minimum", CLEAR, CLEAR, _EXTREME),
    OpRow("SegmentMax", CLEAR, CLEAR, _EXTREME),
    OpRow("SegmentMin", CLEAR, CLEAR, _EXTREME),
    OpRow("Select", CLEAR, CLEAR, _SELECTION),
    OpRow("SelectV2", CLEAR, CLEAR, _SELECTION),
    OpRow("TopK", CLEAR, CLEAR, _RANK),
    OpRow("TopKV2", CLEAR, CLEAR, _RANK),
    OpRow("UnsortedSegmentMax", CLEAR, CLEAR, _EXTREME),
    OpRow("UnsortedSegmentMin", CLEAR, CLEAR, _EXTREME),
    # Comparisons and shapes.
    OpRow("ArgMax", CLEAR, CLEAR, _QUESTION),
    OpRow("ArgMin", CLEAR, CLEAR, _QUESTION),
    OpRow("Equal", CLEAR, CLEAR, _COMPARISON),
    OpRow("Greater", CLEAR, CLEAR, _COMPARISON),
    OpRow("GreaterEqual", CLEAR, CLEAR, _COMPARISON),
    OpRow("IsFinite", CLEAR, CLEAR, _QUESTION),
    OpRow("IsInf", CLEAR, CLEAR, _QUESTION),
    OpRow("IsNan", CLEAR, CLEAR, _QUESTION),
    OpRow("Less", CLEAR, CLEAR, _COMPARISON),
    OpRow("LessEqual", CLEAR, CLEAR, _COMPARISON),
    OpRow("NotEqual", CLEAR, CLEAR, _COMPARISON),
    OpRow("Where", CLEAR, CLEAR, _QUESTION),
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
    OpRow("EnsureShape", CLEAR, CLEAR, _VIEW),
    OpRow("ExpandDims", CLEAR, CLEAR, _VIEW),
    OpRow("ExtractImagePatches", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ExtractVolumePatches", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Fill", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Gather", CLEAR, CLEAR, _MOVEMENT),
    OpRow("GatherNd", CLEAR, CLEAR, _MOVEMENT),
    OpRow("GatherV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Identity", CLEAR, CLEAR, _IDENTITY),
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
    OpRow("PreventGradient", CLEAR, CLEAR, _IDENTITY),
    OpRow("Reshape", CLEAR, CLEAR, _VIEW),
    OpRow("ResizeNearestNeighbor", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ResizeNearestNeighborGrad", CLEAR, CLEAR, _SCATTER),
    OpRow("Reverse", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ReverseSequence", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ReverseV2", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Roll", CLEAR, CLEAR, _MOVEMENT),
    OpRow("ScatterNd", CLEAR, CLEAR, _SCATTER),
    OpRow("Slice", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Snapshot", CLEAR, CLEAR, _IDENTITY),
    OpRow("SpaceToBatch", CLEAR, CLEAR, _MOVEMENT),
    OpRow("SpaceToBatchND", CLEAR, CLEAR, _MOVEMENT),
    OpRow("SpaceToDepth", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Split", CLEAR, CLEAR, _MOVEMENT),
    OpRow("SplitV", CLEAR, CLEAR, _MOVEMENT),
    OpRow("Squeeze", CLEAR, CLEAR, _VIEW),
    OpRow("StopGradient", CLEAR, CLEAR, _IDENTITY),
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

_ROW_OF = {row.op: row for row in _ROWS}
# What the remapper fuses is on the list of what it begins with.
OP_TABLE = (*_ROWS, *(_ROW_OF[op]._replace(op=fused) for fused, op in ROOTS.items()))
ERRORS = {row.op: row.why.errors for row in OP_TABLE}
OTHERS = {row.op: row.why.others for row in OP_TABLE if row.why.others}


def _ops(names: str, *whys: _Why) -> frozenset[str]:
    """Return the ops of some names, and those that are on lists for some reasons."""
    # By identity: two reasons may be worded alike.
    ids = set(map(id, whys))
    return frozenset((*names.split(), *(r.op for r in OP_TABLE if id(r.why) in ids)))


# What begins and ends a graph, and what is known before it runs.
INPUT_OPS = _ops("Placeholder PlaceholderV2 PlaceholderWithDefault _Arg _DeviceArg")
RESULT_OPS = _ops("_Retval _DeviceRetval")
CONSTANT_OPS = _ops("Const HostConst ImmutableConst _EagerConst")

# Variables: those of TensorFlow 1 are their value themselves. What looks at a handle
# neither reads the value, whatever its type, nor writes it.
REF_VARIABLE_OPS = _ops("Variable VariableV2")
VARIABLE_OPS = REF_VARIABLE_OPS | {"VarHandleOp"}
READ_OPS = _ops("ReadVariableOp ResourceGather ResourceGatherNd")
LOOK_OPS = _ops("VarIsInitializedOp VariableShape")

# Calls of functions -> the first input that is an argument of theirs.
PLAIN_CALL_OPS = _ops("PartitionedCall StatefulPartitionedCall")
WHILE_OPS = _ops("StatelessWhile While")
CALL_OPS = {
    **dict.fromkeys(_ops("Case If StatelessCase StatelessIf"), 1),
    **dict.fromkeys(PLAIN_CALL_OPS | WHILE_OPS, 0),
}

# Lowered control flow.
ENTER_OPS = _ops("Enter RefEnter")
EXIT_OPS = _ops("Exit RefExit")
MERGE_OPS = _ops("Merge RefMerge _XlaMerge")
NEXT_ITERATION_OPS = _ops("NextIteration RefNextIteration")
SWITCH_OPS = _ops("RefSwitch Switch _SwitchN")
LOOP_OPS = ENTER_OPS | EXIT_OPS | MERGE_OPS | NEXT_ITERATION_OPS
CONTROL_FLOW_OPS = LOOP_OPS | SWITCH_OPS | {"LoopCond"}

# Each output of these is the first input, unchanged (`FORWARDING_OPS`), or one of the
# inputs; of a view, in another shape. None of them needs memory (`ALIASING_OPS`).
IDENTITY_OPS = _ops("RefIdentity", _IDENTITY)
FORWARDING_OPS = IDENTITY_OPS | SWITCH_OPS | (LOOP_OPS - MERGE_OPS)
PASSING_OPS = FORWARDING_OPS | MERGE_OPS | {"IdentityN"}
VIEW_OPS = _ops("", _IDENTITY, _VIEW)
ALIASING_OPS = PASSING_OPS | VIEW_OPS | _ops("Bitcast CheckNumerics CheckNumericsV2")
EXCHANGE_OPS = _ops("_HostRecv _HostSend _Recv _Send")

# Lists and stacks of tensors: they take a list or make one, its elements' type theirs.
LIST_OPS = _ops(
    """StackCloseV2 TensorArrayCloseV3 TensorArrayGradV3 TensorArrayGradWithShape
    TensorArraySizeV3 TensorListElementShape TensorListLength TensorListResize""",
    _LIST,
)
# The input that these keep in the list that input 0 refers to, and the output that
# these take from it.
PUSHED_INPUT = {
    "StackPushV2": 1,
    "TensorArrayWriteV3": 2,
    "TensorListPushBack": 1,
    "TensorListSetItem": 2,
}
POPPED_OUTPUT = {
    "StackPopV2": 0,
    "TensorArrayReadV3": 0,
    "TensorListGetItem": 0,
    "TensorListPopBack": 1,
}

# Arithmetic.
PRODUCT_OPS = _ops("", _PRODUCT, _CONVOLUTION)
CONVOLUTION_OPS = _ops("", _CONVOLUTION)
RECURRENT_OPS = _ops("", _RECURRENT, _RECURRENT_STEP)
BATCH_NORM_OPS = frozenset(op for op in _ROW_OF.keys() | ROOTS if "BatchNorm" in op)
# Their results are gradients that the backward pass has summed, so that a walk back
# from a variable's update ends here.
SUMMING_GRADIENT_OPS = _ops("", _BIAS, _NORMALIZATION_GRADIENT)
EINSUM_OPS = _ops("Einsum XlaEinsum")
ADDITION_OPS = _ops("Add AddN AddV2")
COMPARISON_OPS = _ops("", _COMPARISON)
# Their first two operands are compared with each other.
COMPARING_OPS = _ops("", _COMPARISON, _EXTREME_GRADIENT)
# Their results are elements of their operands, bit by bit.
SELECTING_OPS = _ops("NthElement", _EXTREME, _RANK)
ROUNDING_OPS = _ops("", _ROUNDING)
SHAPE_OPS = _ops("", _SHAPE)
COUNTING_OPS = _ops("LinSpace Range")
TRIGONOMETRIC_OPS = _ops("Cos Sin Tan")
# They decompose, invert or solve with a matrix.
DECOMPOSING_OPS = _ops(
    """BandedTriangularSolve Cholesky CholeskyGrad Eig LogMatrixDeterminant Lu
    MatrixDeterminant MatrixExponential MatrixInverse MatrixLogarithm MatrixSolve
    MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr SelfAdjointEig
    SelfAdjointEigV2 Svd TridiagonalSolve"""
)
# The size of their results depends on their operands' exact values.
SIZING_OPS = COUNTING_OPS | _ops(
    """Bincount Bucketize DenseBincount HistogramFixedWidth ListDiff LowerBound
    NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5
    Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 UpperBound"""
)
# What a kernel makes for itself, and keeps, where it is not given a name to share.
UNSHARED_OPS = _ops(
    """Barrier Batch BatchFunction ConditionalAccumulator FIFOQueue FIFOQueueV2
    FixedLengthRecordReader FixedLengthRecordReaderV2 HashTable HashTableV2
    IdentityReader IdentityReaderV2 Iterator IteratorV2 LMDBReader MultiDeviceIterator
    MutableDenseHashTable MutableDenseHashTableV2 MutableHashTable
    MutableHashTableOfTensors MutableHashTableOfTensorsV2 MutableHashTableV2
    OneShotIterator PaddingFIFOQueue PaddingFIFOQueueV2 PriorityQueue PriorityQueueV2
    RandomShuffleQueue RandomShuffleQueueV2 ResourceConditionalAccumulator
    SparseConditionalAccumulator TFRecordReader TFRecordReaderV2 TextLineReader
    TextLineReaderV2 Unbatch UnbatchGrad WholeFileReader WholeFileReaderV2"""
)
