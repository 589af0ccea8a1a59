"""Kernels of TensorFlow that refuse when they run, are slow, or compute wrong numbers.

A CPU's float16 kernels are TensorFlow's own, while those of float32 and bfloat16 come
from oneDNN and take every layout, dilation and group. A float16 kernel is registered
all the same, and raises an error. Found by running each with TensorFlow 2.21; the
checks are in tensorflow/core/kernels, in the files named below.

`ROWS` is the table of 16-bit kernels that compute wrong numbers. Eligibility keeps an
op in float32 where a row matches. A size that the graph leaves open matches, as does a
number of threads that is not known. The rows were found by `python -m tests.kernels`
with TensorFlow 2.21.0 and oneDNN 3.7.3; docs/kernels.md has a program for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.eligibility.kernels import (
    BatchProduct,
    Convolution,
    Kernel,
    Role,
    Size,
    batch_product_of,
    convolution_of,
    einsum_product_of,
    role_of,
)
from grappler_pass.graph.op_table import ROOTS
from grappler_pass.graph.shapes import static
from grappler_pass.graph.type_slots import DTYPE_NAMES, FLOAT32, kernel_exists
from grappler_pass.graph.view import Graph, Node

# Fused convolutions always raise (conv_ops_fused_impl.h); a fused product does with
# Gelu (matmul_op_fused.cc). Gradients raise where the convolution is grouped or dilated
# (conv_grad_*_ops.cc), and whether it is grouped only shapes could tell.
_NEVER = frozenset(
    """
    _FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative _FusedMatMul
    Conv2DBackpropInput Conv2DBackpropFilter
    Conv3DBackpropInputV2 Conv3DBackpropFilterV2
    """.split()
)
# Only channels last, undilated, and with equal strides in both directions
# (conv_ops_impl.h, conv_ops_3d.cc, depthwise_conv_op.cc, pooling_ops_common.h).
_PLAIN_ONLY = frozenset(
    """
    Conv2D Conv3D DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput
    DepthwiseConv2dNativeBackpropFilter MaxPool MaxPoolGrad AvgPool AvgPoolGrad
    """.split()
)
# exp(x) - 1, each step rounded to 16 bits (relu_op_functor.h): below zero, near it,
# nothing is right, while Expm1's own kernel is exact to the last bit.
_CANCELLING = frozenset({"Elu", "Selu"})
# It takes exp(x) for log(1 + exp(x)), and beyond the same distance from zero x, as soon
# as they differ by e**2 roundings of the type (softplus_op.h); always by too much.
_APPROXIMATE = frozenset({"Softplus"})
# Its definition admits bfloat16 for statistics, and no kernel computes them in it
# (fused_batch_norm_op.cc).
_FLOAT32_ONLY = frozenset({("FusedBatchNormV3", "U")})

# oneDNN computes these in float16 by its reference kernel, which takes up to hundreds
# of times as long as float32's: gradients of filters, of which the others raise on most
# CPUs, and a product that is fused with its bias, while the product alone is fast.
# `ONEDNN_VERBOSE=1` calls it ref:any, on CPUs with avx512_fp16, with AMX and without;
# on others TensorFlow does not ask oneDNN for float16.
BY_REFERENCE = frozenset({"DepthwiseConv2dNativeBackpropFilter"})
BY_REFERENCE_IF_FUSED = frozenset({"_FusedMatMul"})

# On GPUs TensorFlow fuses it in float32 and float16 alone (`IsGpuCompatibleDataType` in
# remapper.cc), and only if cublasLt is asked for: no program's bfloat16 has run there.
_UNFUSED_ON_GPUS = frozenset({"_FusedMatMul"})


def has_kernel(
    op: str, proto: NodeDef, types: tuple[tuple[str, int], ...], device_type: str
) -> bool:
    """Return whether an op with a node's attributes runs with these type attributes.

    It may be the op of one part of a fused node.
    """
    if any(t != FLOAT32 and (op, attr) in _FLOAT32_ONLY for attr, t in types):
        return False
    bfloat16 = ("T", types_pb2.DT_BFLOAT16) in types
    if bfloat16 and op in _UNFUSED_ON_GPUS and device_type != "CPU":
        return False
    half = ("T", types_pb2.DT_HALF) in types
    if half and device_type == "CPU" and refuses_half(op, proto):
        return False
    return kernel_exists(op, types, device_type)


def refuses_half(op: str, proto: NodeDef) -> bool:
    """Return whether a CPU's float16 kernel of an op raises with a node's attributes.

    What has only oneDNN's own kernels raises on most CPUs.
    """
    if op in _NEVER or op.startswith("_Mkl"):
        return True
    if op not in _PLAIN_ONLY:
        return False
    attrs = proto.attr
    if not ends_in_channels(proto):
        return True
    if "dilations" in attrs and any(size != 1 for size in attrs["dilations"].list.i):
        return True
    is_depthwise = "Depthwise" in proto.op and "strides" in attrs
    return is_depthwise and len(set(attrs["strides"].list.i[1:3])) != 1


def becomes_swish(view: Graph, node: Node) -> bool:
    """Return whether TensorFlow makes `_MklSwish` of x * sigmoid(x) after this pass.

    Most CPUs refuse its float16 kernel (mkl_eltwise_activation_base_op.h).
    """
    if node.op != "Mul":
        return False
    for port, other in (node.inputs, node.inputs[::-1]):
        source = view.nodes[port.node]
        if source.op == "Sigmoid" and source.inputs[0] == other:
            return True
    return False


def is_imprecise(op: str, device_type: str) -> bool:
    """Return whether a 16-bit kernel is off by more than a rounding of its result."""
    return op in _APPROXIMATE or (device_type == "CPU" and op in _CANCELLING)


def ends_in_channels(proto: NodeDef) -> bool:
    """Return whether channels come last, as an added bias broadcasts."""
    # Reading an absent key would create it.
    return "data_format" not in proto.attr or proto.attr["data_format"].s.endswith(b"C")


class Machine(NamedTuple):
    """What of a device decides which kernels run there.

    Attributes:
      device_type: "CPU" or "GPU".
      flags: instruction sets of a CPU, as Linux names them.
      threads: that one op may use; None: not known.
      onednn: whether TensorFlow's kernels of oneDNN are on.
      tensorflow: its version; the last one that the table was made with, if not named.
    """

    device_type: str
    flags: frozenset[str] = frozenset()
    threads: int | None = None
    onednn: bool = True
    tensorflow: tuple[int, int] = (2, 21)


# Of the sizes of a convolution or a batched product; of another op, of its kernel.
Condition = Callable[[Any, Machine], bool]


class Row(NamedTuple):
    """One fault.

    Attributes:
      name: by which docs/kernels.md has it.
      computes: which product of a convolution, or what else; or names of ops.
      dtypes: 16-bit types, divided by spaces.
      flags: instruction sets of CPUs, any of which has it; "any" for all CPUs, "GPU".
      library: "oneDNN" where it does not hold without that, "Eigen" where only then.
      condition: on sizes, layout, threads.
      where: the condition in words.
      wrong: what comes out.
      source: who found it, or where it is reported.
      seen: versions of TensorFlow that showed it, from which to which; of 2.16, 2.18,
        2.20 and 2.21, unless one alone is named: in others it was not tried.
      since: the first version that it is taken to be in.
      compiled: whether it holds for what XLA compiles, too.
    """

    name: str
    computes: Role | frozenset[str]
    dtypes: str
    flags: str
    library: str
    condition: Condition
    where: str
    wrong: str
    source: str = "tests.kernels"
    seen: str = "2.21"
    since: tuple[int, int] = (2, 16)
    compiled: bool = False

    def __str__(self) -> str:
        """Say it in one line."""
        computes = self.computes
        if isinstance(computes, Role):
            what = str(computes.value)
        else:
            what = ", ".join(sorted(computes))
        dtypes = " and ".join(self.dtypes.split())
        return f"{what} in {dtypes}, {self.where}: {self.wrong}"


def _always(sizes: object, machine: Machine) -> bool:
    return True


def _is(size: Size, *values: int) -> bool:
    return size is None or size in values


def _above(size: Size, least: int) -> bool:
    return size is None or size > least


def _below(size: Size, most: int) -> bool:
    return size is None or size < most


def _steps_over_a_line(c: Convolution, machine: Machine) -> bool:
    return _is(c.result[-1], 1) and c.strides[-1] > 1 and _above(c.window[-1], 1)


def _has_patches(c: Convolution, machine: Machine) -> bool:
    width, depth = c.window[-1], c.depth
    row = None if width is None or depth is None else width * depth
    is_whole = row is None or row % 32 == 0
    return is_whole and _above(row, 63) and _below(depth, 32)


def _has_one_patch(c: Convolution, machine: Machine) -> bool:
    is_one = _is(c.image[-1], c.strides[-1]) and _is(c.window[-1], c.strides[-1])
    return is_one and _has_patches(c, machine)


def _steps_over_a_gray_line(c: Convolution, machine: Machine) -> bool:
    is_gray = _is(c.channels_in, 1) and c.strides[-2] == 1 and _above(c.result[-2], 1)
    return is_gray and _steps_over_a_line(c, machine)


def _is_gray_and_blind(c: Convolution, machine: Machine) -> bool:
    return _is(c.channels_in, 1) and _is_deep_and_blind(c, machine)


def _is_deep_and_blind(c: Convolution, machine: Machine) -> bool:
    return len(c.image) == 3 and c.has_blind_taps(0)


def _is_blind(c: Convolution, machine: Machine) -> bool:
    if any(map(c.has_blind_taps, range(len(c.image)))):
        return True
    image, window = c.image[0], c.window[0]
    is_short = image is None or window is None or window > image
    return len(c.image) == 3 and is_short and _above(c.result[0], 1)


def _is_a_series(c: Convolution, machine: Machine) -> bool:
    summed = c.depth if c.role is Role.FORWARD else c.channels_out
    line = c.result if c.role is Role.FORWARD else c.image
    is_narrow = _is(line[-1], 1) and _is(c.window[-1], 1)
    is_high = any(_above(size, 1) for size in c.window[:-1])
    return (
        is_narrow
        and is_high
        and _above(summed, 32)
        and not (summed and summed % 16 == 0)
    )


def _has_fewer_images_than_threads(c: Convolution, machine: Machine) -> bool:
    threads = machine.threads
    is_small = c.batch is None or threads is None or 4 * c.batch <= threads + 3
    many = _above(threads, 3)
    return (
        many and is_small and _below(c.channels_in, 17) and _above(c.channels_out, 95)
    )


def _sums_many(kernel: Kernel, machine: Machine) -> bool:
    whole, result = static(kernel.operands[0].shape), static(kernel.results[0])
    if whole is None or result is None:
        return True
    return math.prod(whole) > 2048 * max(1, math.prod(result))


def _pads_a_window_behind(c: Convolution, machine: Machine) -> bool:
    return c.padding == "EXPLICIT" and c.explicit[-1][1] >= c.reach(-1)


def _is_empty(c: Convolution, machine: Machine) -> bool:
    # What turns out empty when it runs gets its shape from the parts of a fused node.
    return 0 in (c.batch, *c.image, *c.result)


def _pads_by_hand(c: Convolution, machine: Machine) -> bool:
    return c.padding == "EXPLICIT"


def _broadcasts_to_rows(p: BatchProduct, machine: Machine) -> bool:
    if p.left is None or p.right is None:
        return _is(p.rows, 1)
    has_batch = any(_above(size, 1) for size in p.left)
    return _is(p.rows, 1) and has_batch and all(_is(size, 1) for size in p.right)


def _broadcasts_crosswise(p: BatchProduct, machine: Machine) -> bool:
    """Return whether batches are [X, 1] and ones, either way."""
    if p.left is None or p.right is None:
        return True
    rank = max(len(p.left), len(p.right))
    left, right = ((1,) * (rank - len(s)) + tuple(s) for s in (p.left, p.right))
    return any(
        any(_above(size, 1) for size in many[:-1])
        and _is(many[-1], 1)
        and all(_is(size, 1) for size in ones)
        for many, ones in ((left, right), (right, left))
    )


def _is_einsum_by_one_matrix(kernel: Kernel, machine: Machine) -> bool:
    product = einsum_product_of(kernel)
    return product is not None and _is_by_one_matrix(product, machine)


def _is_by_one_matrix(p: BatchProduct, machine: Machine) -> bool:
    """Return whether one matrix of 49 to 63 rows, transposed, multiplies a batch."""
    is_wide = p.columns is None or 48 < p.columns < 64
    if not (p.flips_right and is_wide and _above(machine.threads, 1)):
        return False
    if p.left is None or p.right is None:
        return True
    is_one = all(_is(size, 1) for size in p.right)
    return is_one and max(len(p.left), len(p.right)) > 1


_AMX, _BF16, _FP16 = "amx_bf16", "amx_bf16 avx512_bf16", "avx512_fp16"
_BOTH = "bfloat16 float16"
_CUDNN_RNN = "CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3"
_LONG_SUMS = "Cumsum SegmentSum UnsortedSegmentSum TensorScatterAdd ScatterNd"
_FORWARD, _INPUT, _FILTER = Role.FORWARD, Role.INPUT_GRADIENT, Role.FILTER_GRADIENT

ROWS = (
    Row("A1", _FORWARD, "bfloat16", _AMX, "oneDNN", _steps_over_a_line, "result of width 1, horizontal stride above 1, window wider than 1", "garbage", "tests.kernels; pytorch/pytorch#188426"),
    Row("A2", _FORWARD, "bfloat16", _AMX, "oneDNN", _has_patches, "window's width times channels in a multiple of 32 from 64 on, fewer than 32 channels in", "garbage"),
    Row("A3", _FORWARD, "bfloat16", _AMX, "oneDNN", _is_deep_and_blind, "3-D, some place in the depth of the window sees padding only", "garbage"),
    Row("A4", _FORWARD, "bfloat16", _BF16, "oneDNN", _has_one_patch, "image, window and stride of one width, which times channels in is a multiple of 32 from 64 on, fewer than 32 channels in", "garbage", seen="2.16-2.21"),
    Row("A5", _FORWARD, "bfloat16", _BF16, "oneDNN", _steps_over_a_gray_line, "one channel in, result of width 1 and height above 1, stride above 1 horizontally and 1 vertically, window wider than 1", "garbage in half of the rows", seen="2.16-2.21"),
    Row("A6", _FORWARD, "bfloat16", _BF16, "oneDNN", _is_gray_and_blind, "3-D, one channel in, some place in the depth of the window sees padding only", "garbage", seen="2.18-2.21"),
    Row("A5", _FORWARD, "float16", _FP16, "oneDNN", _steps_over_a_gray_line, "one channel in, result of width 1 and height above 1, stride above 1 horizontally and 1 vertically, window wider than 1", "garbage in half of the rows"),
    Row("A6", _FORWARD, "float16", _FP16, "oneDNN", _is_gray_and_blind, "3-D, one channel in, some place in the depth of the window sees padding only", "garbage"),
    Row("B", _FILTER, "bfloat16", "amx_bf16 avx512_bf16 avx512f", "oneDNN", _is_blind, "some place in the window sees padding only; in 3-D also a window deeper than the image", "what memory held before; in 3-D a crash", seen="2.18-2.21"),
    Row("C", _FORWARD, "float16", _FP16, "oneDNN", _is_a_series, "result and window of width 1, window higher or deeper than 1, channels in above 32 and no multiple of 16", "garbage, NaN", seen="2.16-2.21"),
    Row("C", _INPUT, "float16", _FP16, "oneDNN", _is_a_series, "image and window of width 1, window higher or deeper than 1, channels out above 32 and no multiple of 16", "garbage, NaN", seen="2.16-2.21"),
    Row("D1", Role.BATCH_PRODUCT, "bfloat16", _AMX, "oneDNN", _broadcasts_to_rows, "one row, the right operand the same for a whole batch", "all matrices but the first"),
    Row("D1", Role.BATCH_PRODUCT, "float16", _FP16, "oneDNN", _broadcasts_to_rows, "one row, the right operand the same for a whole batch", "all matrices but the first", seen="2.20-2.21", since=(2, 20)),
    Row("D2", Role.BATCH_PRODUCT, _BOTH, "any", "oneDNN", _broadcasts_crosswise, "batches [X, 1] and ones; in float32, too", "memory is overwritten", "tensorflow/tensorflow#117700, #123109", seen="2.16-2.21"),
    Row("D3", Role.BATCH_PRODUCT, "bfloat16", _AMX, "oneDNN", _is_by_one_matrix, "several threads, the right operand transposed, and the same for a whole batch of two axes or more, 49 to 63 columns", "the first columns"),
    Row("D3", frozenset({"Einsum"}), "bfloat16", _AMX, "oneDNN", _is_einsum_by_one_matrix, "several threads, two letters or more of size 1 in both operands and the result, what is summed last in the right one, 49 to 63 columns", "the first columns"),
    Row("F", _INPUT, _BOTH, "any", "", _pads_by_hand, "EXPLICIT padding", "sums in 16 bits", seen="2.16-2.21"),
    Row("F", _FILTER, _BOTH, "any", "", _pads_by_hand, "EXPLICIT padding", "sums in 16 bits", seen="2.16-2.21"),
    Row("F2", _INPUT, "bfloat16", "any", "Eigen", _always, "always", "sums in 16 bits"),
    Row("F2", _FILTER, "bfloat16", "any", "Eigen", _always, "always", "sums in 16 bits"),
    Row("F2", frozenset({"Conv3D"}), "bfloat16", "any", "Eigen", _always, "always", "sums in 16 bits"),
    Row("G", frozenset({"BiasAddGrad"}), "bfloat16", "any", "", _always, "always", "sums that stop growing at 256", seen="2.16-2.21"),
    Row("G", frozenset(_LONG_SUMS.split()), _BOTH, "any", "", _always, "always", "sums that stop growing at 256 in bfloat16, at 2,048 in float16", seen="2.16-2.21"),
    Row("G", frozenset({"Mean", "Sum"}), "float16", "any", "", _sums_many, "more than 2,048 values each", "sums that stop growing at 2,048, or infinite", seen="2.16-2.21"),
    Row("H", _FILTER, "bfloat16", _AMX, "oneDNN", _has_fewer_images_than_threads, "4 threads or more, batch at most a quarter of them, channels in up to 16, out from 96 on", "most of the sum is missing"),
    Row("M", _FORWARD, "bfloat16", _BF16, "oneDNN", _pads_a_window_behind, "EXPLICIT padding on the right as wide as the window, several threads", "a crash", seen="2.16-2.21"),
    Row("M", _FORWARD, "float16", _FP16, "oneDNN", _pads_a_window_behind, "EXPLICIT padding on the right as wide as the window, several threads", "a crash", seen="2.16-2.21"),
    Row("N", _FORWARD, _BOTH, "any", "oneDNN", _is_empty, "images without a value; in float32, too", "a result of the images' shape, which the bias after it refuses where the two are not fused"),
    Row("R", frozenset(_CUDNN_RNN.split()), "bfloat16", "GPU", "", _always, "always", "gradients by a reserve space that is never filled", "tensorflow/core/kernels/cudnn_rnn_ops.cc"),
)  # fmt: skip
# As wrong in float32: nothing is gained by staying there.
ALSO_IN_FLOAT32 = (
    Row("E", frozenset({"_FusedConv2D"}), "bfloat16 float16 float32", "any", "", _always, "fused from a convolution, a bias, an addition and LeakyRelu", "as with an alpha of 0.2, whatever that is"),
    Row("I", frozenset({"DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput"}), "bfloat16 float16 float32", "any", "", _always, "dilations above 1", "as without dilation"),
    Row("K", frozenset({"_FusedDepthwiseConv2dNative"}), "bfloat16 float16 float32", "any", "oneDNN", _always, "EXPLICIT padding, fused with a bias", "the process ends"),
    Row("L", _FILTER, "bfloat16 float32", "avx512f", "oneDNN", _always, "window 1x1, strides 2, channels in below 16, images from 14 x 14 on, 8 threads or more", "memory is overwritten, or a crash"),
    Row("J", frozenset({"Conv3D"}), "bfloat16 float16 float32", "any", "Eigen", _always, "SAME, windows end two or more values before the image does", "windows begin in the middle"),
)  # fmt: skip
_ROWS_OF_OP = {
    op for row in ROWS if isinstance(row.computes, frozenset) for op in row.computes
}


_SIZES_OF: Mapping[Role, Callable[[Kernel], Any]] = {
    Role.BATCH_PRODUCT: batch_product_of,
    Role.OTHER: lambda kernel: kernel,
}


def may_be_wrong(op: str) -> bool:
    """Return whether the table has rows of an op: of a fused one, of its product."""
    op = ROOTS.get(op, op)
    return op in _ROWS_OF_OP or role_of(op) is not Role.OTHER


def row_for(kernel: Kernel, machine: Machine, *, compiled: bool = False) -> Row | None:
    """Return the first row that matches a kernel on a machine, or one of XLA's."""
    low, role = DTYPE_NAMES[kernel.low_dtype], role_of(kernel.op)
    sizes_of = _SIZES_OF.get(role, convolution_of)
    for row in rows_for(machine):
        computes = row.computes
        if (
            (role is computes if isinstance(computes, Role) else kernel.op in computes)
            and low in row.dtypes.split()
            and (row.compiled or not compiled)
            and row.condition(sizes_of(kernel), machine)
        ):
            return row
    return None


def rows_for(machine: Machine, rows: Sequence[Row] = ROWS) -> Iterator[Row]:
    """Yield the rows that apply to a machine."""
    if machine.device_type != "CPU":
        return (row for row in rows if row.flags == machine.device_type)
    library = "oneDNN" if machine.onednn else "Eigen"
    return (
        row
        for row in rows
        if machine.tensorflow >= row.since
        and row.library in ("", library)
        and (row.flags == "any" or not machine.flags.isdisjoint(row.flags.split()))
    )
