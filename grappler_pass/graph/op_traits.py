"""What an op is, as far as precision cares: an update, a random draw, a fixed type.

Read off the OpDef where it tells, off the op's name where it does not.
"""

from __future__ import annotations

import functools
import re

from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.type_slots import op_def_of

_UPDATES = re.compile(
    r"(Resource)?(Sparse)?(Accumulator)?(Apply|Assign|Scatter|StridedSliceAssign)"
)
_DRAWS = re.compile(
    r"(Stateless|Stateful)?"
    r"(Random|Truncated|Standard|Uniform|Parameterized|Multinomial|Sample)"
)
_TRIGONOMETRIC = frozenset({"Sin", "Cos", "Tan"})
_COMPARISONS = frozenset(
    {"Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"}
)
_ROUNDINGS = frozenset({"Ceil", "Floor", "Rint", "Round"})
_LOGARITHMS = frozenset({"Log", "Log1p"})
_DECOMPOSITIONS = frozenset(
    """BandedTriangularSolve Cholesky CholeskyGrad Eig LogMatrixDeterminant Lu
    MatrixDeterminant MatrixExponential MatrixInverse MatrixLogarithm MatrixSolve
    MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr SelfAdjointEig
    SelfAdjointEigV2 Svd TridiagonalSolve""".split()
)
INPUT = "an input of the graph"
RESULT = "a result of the graph"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_CONSTANT = "a constant; 16-bit readers get a copy made beforehand"
_VARIABLE = "a variable, whose type is stored with it"
_BITS = "its result depends on the bits of its operand"
_COUNTS = "the size of its result depends on its operand's exact values"

_FIXED = {
    "Placeholder": INPUT,
    "PlaceholderV2": INPUT,
    "PlaceholderWithDefault": INPUT,
    "_Arg": INPUT,
    "_DeviceArg": INPUT,
    "_Retval": RESULT,
    "_DeviceRetval": RESULT,
    "Const": _CONSTANT,
    "HostConst": _CONSTANT,
    "ImmutableConst": _CONSTANT,
    "_EagerConst": _CONSTANT,
    "ReadVariableOp": _VARIABLE,
    "ResourceGather": _VARIABLE,
    "ResourceGatherNd": _VARIABLE,
    "VarHandleOp": _VARIABLE,
    "Variable": _VARIABLE,
    "VariableV2": _VARIABLE,
    "Bitcast": _BITS,
    "Bincount": _COUNTS,
    "Bucketize": _COUNTS,
    "DenseBincount": _COUNTS,
    "HistogramFixedWidth": _COUNTS,
    "LinSpace": _COUNTS,
    "ListDiff": _COUNTS,
    "LowerBound": _COUNTS,
    "NonMaxSuppressionV2": _COUNTS,
    "NonMaxSuppressionV3": _COUNTS,
    "NonMaxSuppressionV4": _COUNTS,
    "NonMaxSuppressionV5": _COUNTS,
    "Range": _COUNTS,
    "Unique": _COUNTS,
    "UniqueV2": _COUNTS,
    "UniqueWithCounts": _COUNTS,
    "UniqueWithCountsV2": _COUNTS,
    "UpperBound": _COUNTS,
}
# What a kernel makes for itself, and keeps, where it is not given a name to share.
_UNSHARED = frozenset(
    """Barrier Batch BatchFunction ConditionalAccumulator FIFOQueue FIFOQueueV2
    FixedLengthRecordReader FixedLengthRecordReaderV2 HashTable HashTableV2
    IdentityReader IdentityReaderV2 Iterator IteratorV2 LMDBReader MultiDeviceIterator
    MutableDenseHashTable MutableDenseHashTableV2 MutableHashTable
    MutableHashTableOfTensors MutableHashTableOfTensorsV2 MutableHashTableV2
    OneShotIterator PaddingFIFOQueue PaddingFIFOQueueV2 PriorityQueue PriorityQueueV2
    RandomShuffleQueue RandomShuffleQueueV2 ResourceConditionalAccumulator
    SparseConditionalAccumulator TFRecordReader TFRecordReaderV2 TextLineReader
    TextLineReaderV2 Unbatch UnbatchGrad WholeFileReader WholeFileReaderV2""".split()
)
# By these a kernel draws the same numbers in each run; with none it draws fresh ones.
_SEEDS = ("seed", "seed2")
# Those that pass on all that they read, and those that pass on their first input.
_EACH = "IdentityN"
_FIRST = ("Identity", "RefSwitch", "Snapshot", "Switch", "_SwitchN")
_OPAQUE = frozenset({types_pb2.DT_STRING, types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})


@functools.cache
def is_update(op: str) -> bool:
    """Tell whether `op` writes a variable: Assign*, Apply*, Scatter*, Resource*."""
    op_def = op_def_of(op)
    if op_def is None or not op_def.input_arg or not _UPDATES.match(op):
        return False
    target = op_def.input_arg[0]
    return bool(target.is_ref) or target.type == types_pb2.DT_RESOURCE


@functools.cache
def has_effects(op: str) -> bool:
    """Tell whether `op` matters though nobody reads it; an unknown op might."""
    op_def = op_def_of(op)
    return op_def is None or bool(op_def.is_stateful) or _has_reference(op_def)


@functools.cache
def keeps_kernel(op: str) -> bool:
    """Tell whether all graphs of a Session share one kernel for a node of `op`."""
    op_def = op_def_of(op)
    return op_def is not None and bool(op_def.is_stateful) and op not in _CALLS


@functools.cache
def is_random(op: str) -> bool:
    """Tell whether `op` draws random numbers."""
    return _DRAWS.match(op) is not None


def keeps_state_in_kernel(node: NodeDef) -> bool:
    """Tell whether two kernels of a node differ in what they have gone through.

    Each of them draws a stream of numbers of its own from the seed, or has a queue, a
    table, an accumulator or a batch of its own. Fresh random numbers tell nobody which
    kernel has drawn them.
    """
    if node.op in _UNSHARED:
        return "shared_name" not in node.attr or not node.attr["shared_name"].s
    return any(name in node.attr and node.attr[name].i for name in _SEEDS)


def magnifies_rounding(op: str) -> bool:
    """Tell whether rounding a whole number or a draw can make another outcome of it.

    A uniform draw just below 1 rounds to 1: a comparison falls out differently, a floor
    is 1, the logarithm of its logarithm is infinite.
    """
    return op in _COMPARISONS or op in _ROUNDINGS or op in _LOGARITHMS


def is_trigonometric(op: str) -> bool:
    """Tell whether `op` takes an angle, of which large ones need all their bits."""
    return op in _TRIGONOMETRIC


def is_decomposition(op: str) -> bool:
    """Tell whether `op` decomposes, inverts or solves with a matrix."""
    return op in _DECOMPOSITIONS


@functools.cache
def why_fixed(op: str, is_listed: bool) -> str:
    """Return why the types of `op` cannot change; empty if they can.

    Args:
      op: a registered op.
      is_listed: whether a list says that it may go low. An op without such a row is
        fixed by state, by functions it calls, and by ports that are not numbers.
    """
    op_def = op_def_of(op)
    if op in _FIXED:
        return _FIXED[op]
    if op_def is None or _has_reference(op_def):
        return _VARIABLE
    if is_listed:
        return ""
    if op_def.is_stateful or is_random(op):
        return "has state"
    if any(attr.type in ("func", "list(func)") for attr in op_def.attr):
        return "calls functions, whose types are their own"
    if any(a.type in _OPAQUE for a in (*op_def.input_arg, *op_def.output_arg)):
        return "handles more than numbers"
    return ""


def _has_reference(op_def: op_def_pb2.OpDef) -> bool:
    return any(a.is_ref for a in (*op_def.input_arg, *op_def.output_arg))


def passes_on(op: str) -> bool:
    """Tell whether the outputs of an op are inputs of it, unchanged."""
    return op == _EACH or op in _FIRST


def input_behind(op: str, output: int) -> int:
    """Return which input an output is, of an op that passes on."""
    return output if op == _EACH else 0
