"""Calls of operations, and the models that price them."""

import ast
from collections.abc import Iterator

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec

DTYPES = ("float32", "bfloat16", "float16")
PROFILES = DeviceProfile.names()
MODELS = {name: CostModel(DeviceProfile.load(name)) for name in PROFILES}
MEASURED = MODELS["cpu-avx512-bf16"]


def spec(*shape, dtype="float32"):
    return TensorSpec(shape, dtype)


def op_call(text):
    """Return a call from text: `Split ():int32 4x?*2 ... -> 4x8 num_split=2`.

    `()` is a scalar, `?` an unknown size, `...` an unknown rank, `*2` two of them.
    """
    op, *words = text.split()
    attrs = [word.split("=", 1) for word in words if "=" in word]
    inputs, _, outputs = " ".join(w for w in words if "=" not in w).partition("->")
    values = {name: ast.literal_eval(value) for name, value in attrs}
    return OpCall(op, values, tuple(_specs(inputs)), tuple(_specs(outputs)))


def _specs(text: str) -> Iterator[TensorSpec]:
    for word in text.split():
        each, _, times = word.partition("*")
        sizes, _, dtype = each.partition(":")
        shape = None
        if sizes != "...":
            dims = sizes.strip("()").split("x")
            shape = tuple(None if n == "?" else int(n) for n in dims if n)
        yield from [TensorSpec(shape, dtype or "float32")] * int(times or 1)


def matmul(m, k, n, **attrs):
    return OpCall("MatMul", attrs, (spec(m, k), spec(k, n)), (spec(m, n),))


def batch_matmul(b, m, k, n):
    return OpCall("BatchMatMulV2", {}, (spec(b, m, k), spec(b, k, n)), (spec(b, m, n),))


def elementwise(op, *shape):
    count = 2 if op in ("AddV2", "Mul", "TanhGrad") else 1
    return OpCall(op, {}, (spec(*shape),) * count, (spec(*shape),))


def convolution(op, batch, edge, channels, filters, kernel=3, stride=1, **attrs):
    small = -(-edge // stride)
    image = spec(batch, edge, edge, channels)
    weights = spec(kernel, kernel, channels, filters)
    result = spec(batch, small, small, filters)
    sizes = spec(4, dtype="int32")
    attrs = {"strides": (1, stride, stride, 1), "data_format": b"NHWC", **attrs}
    inputs, output = {
        "Conv2DBackpropInput": ((sizes, weights, result), image),
        "Conv2DBackpropFilter": ((image, sizes, result), weights),
    }.get(op, ((image, weights), result))
    return OpCall(op, attrs, inputs, (output,))


def depthwise(op, batch, edge, channels, kernel=3, stride=1):
    small = -(-edge // stride)
    image = spec(batch, edge, edge, channels)
    weights = spec(kernel, kernel, channels, 1)
    result = spec(batch, small, small, channels)
    sizes = spec(4, dtype="int32")
    inputs, output = {
        "DepthwiseConv2dNativeBackpropInput": ((sizes, weights, result), image),
        "DepthwiseConv2dNativeBackpropFilter": ((image, sizes, result), weights),
    }.get(op, ((image, weights), result))
    attrs = {"strides": [1, stride, stride, 1]}
    return OpCall(op, attrs, inputs, (output,))


def fused(op, names, inputs, output):
    return OpCall(op, {"fused_ops": tuple(names)}, tuple(inputs), (output,))


def seconds(call, dtype, model=MEASURED):
    return model.price(call, dtype).seconds


def ratio(call):
    return seconds(call, "bfloat16") / seconds(call, "float32")
