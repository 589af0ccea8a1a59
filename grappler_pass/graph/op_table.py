"""What is known of ops by their names: their lists, and facts true whoever asks.

`_LISTS` says which lists each op is on, for bfloat16 and float16, and why. Below it are
the facts: who needs a list of ops composes it of these, so that a new op is added here
alone.

The placement starts from TensorFlow's own (auto_mixed_precision_lists.h) and differs
where bfloat16 has float32's range (Exp, Pow and squares are denied in float16 only),
where a long sum would lose its tail (denied in both), and by the fused ops that the
remapper makes before this pass runs. Functional control flow and calls are in no list:
their types belong to the functions they run.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

ALLOW = "allow"
INFER = "infer"
DENY = "deny"
CLEAR = "clear"
LIST_NAMES = (ALLOW, INFER, DENY, CLEAR)


class Errors(enum.Enum):
    """What an op makes of the rounding errors of what it reads.

    Whether an intermediate value may be in 16 bits depends on this: `eligibility`'s
    `carried_errors` and `sensitivity` know how.
    """

    PRODUCT = "sums products of its operands, which anybody would round for it"
    MOVES = "passes them on unchanged"
    SCALES = "keeps relative errors: the result is as exact as the worst factor"
    SUMS = "adds absolute errors, beside which a small result may vanish"
    ACTIVATES = "bounded slope: keeps absolute errors, whatever is left of the value"
    AVERAGES = "takes means of few values"
    NORMALIZES = "subtracts a mean and divides by a deviation"
    GRADIENT = "linear in the gradient that it reads, the only one it passes on"
    REDUCES = "sums many values, float32 throughout"
    MAGNIFIES = "it magnifies errors of values near 1, or of many factors"
    JUMPS = "makes another outcome of the smallest error at a threshold"
    IGNORES = "looks at no value"


class Others(enum.Enum):
    """What an op that passes a gradient on makes of its other operands."""

    SIGN = "looks at signs, or at which element is the largest"
    SMOOTH = "multiplies by a function as exact as they are"
    CANCELS = "subtracts them from 1"


@dataclasses.dataclass(frozen=True, eq=False)
class _Why:
    """Why ops are on their lists, as a clause, and what they make of errors.

    Of two that are worded alike each has ops of its own.
    """

    text: str
    errors: Errors | None
    others: Others | None = None


class OpRow(NamedTuple):
    """One op: its list for either low dtype, and why it is there."""

    op: str
    bfloat16: str
    float16: str
    why: _Why


_PRODUCT = _Why(
    "it is a matrix product, which 16-bit units sum in float32", Errors.PRODUCT
)
_CONVOLUTION = _Why(
    "it is a convolution, which 16-bit units sum in float32", Errors.PRODUCT
)
_RECURRENT = _Why(
    "it is a recurrent kernel with matrix products inside", Errors.PRODUCT
)
# Over 500 steps with the forget gate nearly open these have up to 15 times the error of
# casts by hand; 2.3 times where the state alone is rounded, as cuDNN does.
_RECURRENT_STEP = _Why(
    "it is a recurrent kernel, whose state would be in 16 bits between steps",
    Errors.PRODUCT,
)
_SUM = _Why("it is a sum, as exact as its operands unless they cancel", Errors.SUMS)
_FACTOR = _Why("it is a product of numbers, as exact as its operands", Errors.SCALES)
_DIVISION = _Why(
    "it is a division, as exact as its operands unless one comes from a denied op",
    Errors.SCALES,
)
_DIVISION_GRADIENT = _Why(
    "it is the gradient of a division or root, as exact as its operands",
    Errors.GRADIENT,
    Others.SMOOTH,
)
_REMAINDER = _Why("it rounds a quotient to whole numbers", Errors.JUMPS)
_ACTIVATION = _Why("it is an activation with a bounded slope", Errors.ACTIVATES)
_LINEAR = _Why("it is piecewise linear, as exact as its operand", Errors.MOVES)
_SLOPE = "it is the gradient of an activation with a bounded slope"
_ACTIVATION_GRADIENT = _Why(_SLOPE, Errors.GRADIENT, Others.CANCELS)
_SMOOTH_GRADIENT = _Why(_SLOPE, Errors.GRADIENT, Others.SMOOTH)
_LINEAR_GRADIENT = _Why(_SLOPE, Errors.GRADIENT, Others.SIGN)
_POOLING = _Why("it is a mean over a window, which has few terms", Errors.AVERAGES)
_POOLING_GRADIENT = _Why(
    "it is the gradient of a mean over a window, which has few terms",
    Errors.GRADIENT,
    Others.SIGN,
)
_NORMALIZATION = _Why(
    "it is a normalization, whose statistics stay in float32", Errors.NORMALIZES
)
_NORMALIZATION_GRADIENT = _Why(
    "it is the gradient of a normalization, whose statistics stay in float32",
    Errors.GRADIENT,
    Others.SMOOTH,
)
_LOGARITHM = _Why(
    "it is a logarithm, which magnifies an error of its operand near 1",
    Errors.MAGNIFIES,
)
_LOG_SOFTMAX = _Why(_LOGARITHM.text, Errors.MAGNIFIES)
_BIAS = _Why("it is the gradient of a bias, one sum per channel", Errors.REDUCES)
_RANGE = "its result leaves float16's range where bfloat16 holds it"
_RANGE_FACTOR = _Why(_RANGE, Errors.SCALES)
_RANGE_GRADIENT = _Why(_RANGE, Errors.GRADIENT, Others.SMOOTH)
_RANGE_POWER = _Why(_RANGE, Errors.MAGNIFIES)
_RANGE_DIFFERENCE = _Why(_RANGE, Errors.SUMS)
_RANGE_NORMALIZATION = _Why(_RANGE, Errors.NORMALIZES)
_LONG_SUM = _Why(
    "it is a long reduction, in which small terms vanish next to the sum",
    Errors.REDUCES,
)
_LONG_PRODUCT = _Why(
    "it is a long product, which magnifies the errors of its factors", Errors.MAGNIFIES
)
_LOSS = _Why("it is a loss, whose sums and exponentials need float32", Errors.REDUCES)
_CHECKPOINT = _Why("it writes a checkpoint, whose dtypes must stay", None)
_ANY_UNARY = _Why("it may be any chain of unary functions, Exp among them", None)
_MOVES = "it moves values without changing them"
_MOVEMENT = _Why(_MOVES, Errors.MOVES)
_VIEW = _Why(_MOVES, Errors.MOVES)
_IDENTITY = _Why(_MOVES, Errors.MOVES)
_SELECTS = "it selects among its inputs' values"
_SELECTION = _Why(_SELECTS, Errors.MOVES)
_EXTREME = _Why(_SELECTS, Errors.MOVES)
_SELECTED = "it is the gradient of a selection, which moves values"
_SELECTION_GRADIENT = _Why(_SELECTED, Errors.GRADIENT, Others.SIGN)
_EXTREME_GRADIENT = _Why(_SELECTED, Errors.GRADIENT, Others.SIGN)
_SIGN = _Why("it is exact in any floating type", Errors.MOVES)
_SIGN_GRADIENT = _Why(
    "it is a gradient that looks at a sign only", Errors.GRADIENT, Others.SIGN
)
_LIKE = _Why("it looks at the shape only", Errors.IGNORES)
_COMPARES = "it compares values, and its result is not floating"
_COMPARISON = _Why(_COMPARES, Errors.JUMPS)
_QUESTION = _Why(_COMPARES, Errors.JUMPS)
_SHAPE = _Why("it looks at the shape only", Errors.IGNORES)
_ROUNDING = _Why("it rounds to whole numbers", Errors.JUMPS)
_RANK = _Why("it ranks values, whose order jumps", Errors.JUMPS)
_SCATTER = _Why(
    "it moves values, and sums few terms where indices repeat", Errors.REDUCES
)
_CONTROL = _Why("it is control flow, which passes a value on", Errors.MOVES)
_LIST = _Why("it is an op of tensor lists, which passes elements on", Errors.MOVES)

# Lists for bfloat16 and for float16 -> why ops are on them -> which.
_LISTS: Mapping[tuple[str, str], Mapping[_Why, str]] = {
    (ALLOW, ALLOW): {
        _PRODUCT: """BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum MatMul XlaDot
        XlaEinsum""",
        _CONVOLUTION: """Conv Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2
        Conv2DBackpropInput Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter
        Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2
        DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
        DepthwiseConv2dNativeBackpropInput FusedPadConv2D FusedResizeAndPadConv2D
        XlaConv""",
        _RECURRENT: """CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3
        CudnnRNNV2 CudnnRNNV3""",
    },
    (INFER, INFER): {
        _SUM: "Add AddN AddV2 BiasAdd BiasAddV1 Cross Sub",
        _FACTOR: "Mul MulNoNan",
        _SCATTER: "TensorScatterAdd TensorScatterSub",
        _BIAS: "BiasAddGrad",
        _DIVISION: "Div DivNoNan Inv RealDiv Reciprocal Sqrt",
        _DIVISION_GRADIENT: "SqrtGrad",
        _REMAINDER: "FloorDiv FloorMod",
        _ACTIVATION: """Elu Erf Erfc Selu Sigmoid Softmax Softplus Softsign Tanh
        _MklFusedMish _MklSwish""",
        _ACTIVATION_GRADIENT: "EluGrad SeluGrad SigmoidGrad TanhGrad",
        _LINEAR: "LeakyRelu",
        _LOGARITHM: "Log Log1p",
        _LOG_SOFTMAX: "LogSoftmax",
        _LINEAR_GRADIENT: "LeakyReluGrad",
        _SMOOTH_GRADIENT: "SoftplusGrad SoftsignGrad",
        _POOLING: "AvgPool AvgPool3D ResizeBilinear",
        _POOLING_GRADIENT: "AvgPool3DGrad AvgPoolGrad ResizeBilinearGrad",
        _NORMALIZATION: """FusedBatchNormV2 FusedBatchNormV3 _MklFusedInstanceNorm
        _MklLayerNorm""",
        _NORMALIZATION_GRADIENT: "FusedBatchNormGradV2 FusedBatchNormGradV3",
    },
    # Range hazards: float16 ends at 65504.
    (INFER, DENY): {
        _RANGE_GRADIENT: "InvGrad LRNGrad ReciprocalGrad RsqrtGrad",
        _RANGE_FACTOR: "Rsqrt Square",
        _RANGE_NORMALIZATION: "LRN",
        _RANGE_POWER: "Exp Expm1 Pow",
        _RANGE_DIFFERENCE: "SquaredDifference",
    },
    (DENY, DENY): {
        _RECURRENT_STEP: """BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2
        GRUBlockCell GRUBlockCellGrad LSTMBlockCell LSTMBlockCellGrad""",
        _LONG_SUM: """Cumsum CumulativeLogsumexp EuclideanNorm L2Loss Mean SegmentMean
        SegmentSum SparseSegmentMean SparseSegmentSum Sum UnsortedSegmentSum""",
        _LONG_PRODUCT: "Cumprod Prod SegmentProd UnsortedSegmentProd",
        _LOSS: "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
        _CHECKPOINT: "SaveV2",
        _ANY_UNARY: "_UnaryOpsComposition",
    },
    (CLEAR, CLEAR): {
        _SIGN: "Abs Neg Relu Relu6 Sign",
        _SIGN_GRADIENT: "Relu6Grad ReluGrad",
        _ROUNDING: "Ceil Floor Rint Round",
        _SELECTION: "ClipByValue Select SelectV2",
        _SELECTION_GRADIENT: "MaxPoolGradWithArgmax",
        _EXTREME: """Max MaxPool MaxPool3D MaxPoolV2 Maximum Min Minimum SegmentMax
        SegmentMin UnsortedSegmentMax UnsortedSegmentMin""",
        _EXTREME_GRADIENT: """MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad
        MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2""",
        _RANK: "MaxPoolWithArgmax TopK TopKV2",
        _QUESTION: "ArgMax ArgMin IsFinite IsInf IsNan Where",
        _COMPARISON: "Equal Greater GreaterEqual Less LessEqual NotEqual",
        _SHAPE: "Rank Shape ShapeN Size",
        _LIKE: "OnesLike ZerosLike",
        _MOVEMENT: """BatchToSpace BatchToSpaceND BroadcastTo CheckNumerics
        CheckNumericsV2 Concat ConcatV2 ConjugateTranspose DepthToSpace Diag DiagPart
        DynamicPartition DynamicStitch ExtractImagePatches ExtractVolumePatches Fill
        Gather GatherNd GatherV2 IdentityN MatrixBandPart MatrixDiag MatrixDiagPart
        MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag
        MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad OneHot Pack Pad PadV2 ParallelConcat
        ParallelDynamicStitch ResizeNearestNeighbor Reverse ReverseSequence ReverseV2
        Roll Slice SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV StridedSlice
        StridedSliceGrad TensorScatterUpdate TensorStridedSliceUpdate Tile Transpose
        Unpack""",
        _VIEW: "EnsureShape ExpandDims Reshape Squeeze",
        _IDENTITY: "Identity PreventGradient Snapshot StopGradient",
        _SCATTER: "MirrorPadGrad ResizeNearestNeighborGrad ScatterNd",
        # Lowered. Ref* ops pass a variable itself on: its type is fixed.
        _CONTROL: "Enter Exit Merge NextIteration Switch _SwitchN _XlaMerge",
        # All readers and writers of one list share a color.
        _LIST: """EmptyTensorList StackPopV2 StackPushV2 StackV2 TensorArrayConcatV3
        TensorArrayGatherV3 TensorArrayReadV3 TensorArrayScatterV3 TensorArraySplitV3
        TensorArrayV3 TensorArrayWriteV3 TensorListConcat TensorListConcatLists
        TensorListConcatV2 TensorListFromTensor TensorListGather TensorListGetItem
        TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListReserve
        TensorListScatter TensorListScatterIntoExistingList TensorListScatterV2
        TensorListSetItem TensorListSplit TensorListStack""",
    },
}

# What TensorFlow's remapper, which runs before plugins, makes fused nodes of. A node
# says what kind of op each of its parts was, not always which: a bias may have been
# added by `BiasAdd` or by `AddV2`. What it may hold counts as held.

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
# What may be fused behind a product that runs as a batched one: a bias, and what
# activates it without rounding.
BATCHED_EPILOGUES = (("BiasAdd",), ("BiasAdd", "Relu"), ("BiasAdd", "Relu6"))
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

_ROWS = tuple(
    OpRow(op, *lists, why)
    for lists, ops_of in _LISTS.items()
    for why, ops in ops_of.items()
    for op in ops.split()
)
_ROW_OF = {row.op: row for row in _ROWS}
# What the remapper fuses is on the list of what it begins with.
OP_TABLE = (*_ROWS, *(_ROW_OF[op]._replace(op=fused) for fused, op in ROOTS.items()))
ERRORS = {row.op: row.why.errors for row in OP_TABLE}
OTHERS = {row.op: row.why.others for row in OP_TABLE if row.why.others}


def _ops(names: str, *whys: _Why) -> frozenset[str]:
    """Return the ops of some names, and those that are on lists for some reasons."""
    return frozenset((*names.split(), *(r.op for r in OP_TABLE if r.why in whys)))


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
BRANCH_OPS = _ops("Case If StatelessCase StatelessIf")
CALL_OPS = {
    **dict.fromkeys(BRANCH_OPS, 1),
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
# They make another outcome of a whole number or a draw that is rounded: a uniform draw
# just below 1 rounds to 1. A comparison falls out differently, a floor is 1, the
# logarithm of its logarithm is infinite.
MAGNIFYING_OPS = _ops("", _COMPARISON, _ROUNDING, _LOGARITHM)
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


def ops_within(node: NodeDef) -> tuple[str, ...]:
    """Return the ops that a fused node may have been made of; empty of other nodes."""
    if node.op not in ROOTS and node.op not in _WITHIN:
        return ()
    found = [ROOTS.get(node.op, ""), *_WITHIN.get(node.op, "").split()]
    for name, _ in fused_parts(node):
        found += epilogue_of(name).stands_for.split()
    return tuple(dict.fromkeys(filter(None, found)))
