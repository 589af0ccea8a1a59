"""What registered kernels refuse when they run, and which cannot be trusted.

A CPU's float16 kernels are TensorFlow's own, while those of float32 and bfloat16 come
from oneDNN and take every layout, dilation and group. A float16 kernel is registered
all the same, and raises an error. Found by running each with TensorFlow 2.21; the
checks are in tensorflow/core/kernels, in the files named below.
"""

from __future__ import annotations

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.type_slots import FLOAT32, kernel_exists
from grappler_pass.graph.view import GraphView, Node

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
_BY_REFERENCE = frozenset({"DepthwiseConv2dNativeBackpropFilter"})
_BY_REFERENCE_IF_FUSED = frozenset({"_FusedMatMul"})

# On GPUs TensorFlow fuses it in float32 and float16 alone (`IsGpuCompatibleDataType` in
# remapper.cc), and only if cublasLt is asked for: nobody's bfloat16 has run there.
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
    return op in _PLAIN_ONLY and not _is_plain(proto)


def is_by_reference(op: str, low_dtype: int, device_type: str) -> bool:
    """Return whether oneDNN computes an op by its reference kernel in a 16-bit type."""
    is_half = low_dtype == types_pb2.DT_HALF and device_type == "CPU"
    return is_half and op in _BY_REFERENCE


def is_by_reference_if_fused(op: str, low_dtype: int, device_type: str) -> bool:
    """Return whether oneDNN does so for a fused op, and not for its product alone."""
    is_half = low_dtype == types_pb2.DT_HALF and device_type == "CPU"
    return is_half and op in _BY_REFERENCE_IF_FUSED


def becomes_biased_product(view: GraphView, node: Node) -> bool:
    """Return whether TensorFlow makes `_FusedMatMul` of a bias after this pass."""
    return node.op == "BiasAdd" and view.nodes[node.inputs[0].node].op == "MatMul"


def becomes_swish(view: GraphView, node: Node) -> bool:
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


def _is_plain(proto: NodeDef) -> bool:
    attrs = proto.attr
    if not ends_in_channels(proto):
        return False
    if "dilations" in attrs and any(size != 1 for size in attrs["dilations"].list.i):
        return False
    if "Depthwise" in proto.op and "strides" in attrs:
        return len(set(attrs["strides"].list.i[1:3])) == 1
    return True
