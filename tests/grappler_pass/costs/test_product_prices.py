"""Every op that starts low precision is priced by the products that it computes."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from tensorflow.python.framework import op_def_registry

from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.costs.op_work import works_of
from grappler_pass.graph.op_table import OP_TABLE, Errors
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import draft_graph
from tests.op_calls import MODELS, spec
from tests.text_graph import graph_from_text
from tf_amp.config.amp_config import AmpConfig
from tf_amp.tools.target_device import target_of


class Sample(NamedTuple):
    """A call, and the flops of its products counted by hand."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: dict[str, object]
    flops: float


def sample(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    flops: float,
    **attrs: object,
) -> Sample:
    """Return a sample with attributes by name."""
    return Sample(inputs, outputs, attrs, flops)


WHOLE = spec(4, dtype="int32")

# Products: [128, 256] and [256, 512], four of them where there is a batch.
M, K, N, BATCH = 128, 256, 512, 4
LEFT, RIGHT, OUT = spec(M, K), spec(K, N), spec(M, N)
LEFTS, RIGHTS, OUTS = spec(BATCH, M, K), spec(BATCH, K, N), spec(BATCH, M, N)
PRODUCT = 2.0 * M * K * N
PLAIN = sample((LEFT, RIGHT), (OUT,), PRODUCT)
BATCHED = sample((LEFTS, RIGHTS), (OUTS,), BATCH * PRODUCT)

# Convolutions: 3 x 3 over images of 16 x 16 with 64 channels, to 128.
IMAGE, KERNEL, RESULT = spec(8, 16, 16, 64), spec(3, 3, 64, 128), spec(8, 16, 16, 128)
CONVOLVED = 2.0 * 8 * 16 * 16 * 9 * 64 * 128
STRIDES = {"strides": (1, 1, 1, 1)}
VOLUME, CUBE = spec(2, 4, 8, 8, 64), spec(3, 3, 3, 64, 128)
VOLUMES = spec(2, 4, 8, 8, 128)
IN_SPACE = 2.0 * 2 * 4 * 8 * 8 * 27 * 64 * 128
CHANNELS = spec(3, 3, 64, 1)
EACH = 2.0 * 8 * 16 * 16 * 64 * 9


def convolution(*inputs: TensorSpec, out: TensorSpec = RESULT) -> Sample:
    """Return a convolution of images or one of its gradients."""
    return sample(inputs, (out,), CONVOLVED, **STRIDES)


def in_space(*inputs: TensorSpec, out: TensorSpec = VOLUMES) -> Sample:
    """Return the same of volumes."""
    return sample(inputs, (out,), IN_SPACE, strides=(1, 1, 1, 1, 1))


def of_each_channel(*inputs: TensorSpec, out: TensorSpec = IMAGE) -> Sample:
    """Return a depthwise convolution or one of its gradients."""
    return sample(inputs, (out,), EACH, **STRIDES)


# Recurrent: 10 steps of 32 rows, 48 inputs, 64 units.
TIME, ROWS, INPUTS, UNITS = 10, 32, 48, 64
X, H, S = spec(TIME, ROWS, INPUTS), spec(ROWS, UNITS), spec(TIME, ROWS, UNITS)
STEP_X, W = spec(ROWS, INPUTS), spec(INPUTS + UNITS, 4 * UNITS)
PEEPHOLE, BIAS = spec(UNITS), spec(4 * UNITS)
BLOCK = (spec(dtype="int64"), X, H, H, W, PEEPHOLE, PEEPHOLE, PEEPHOLE, BIAS)
BLOCK_GRADIENTS = (X, H, H, W, PEEPHOLE, PEEPHOLE, PEEPHOLE, BIAS)
CELL = (STEP_X, H, H, W, PEEPHOLE, PEEPHOLE, PEEPHOLE, BIAS)
LSTM = 2.0 * ROWS * (INPUTS + UNITS) * 4 * UNITS
GRU = (
    *(STEP_X, H, spec(INPUTS + UNITS, 2 * UNITS), spec(INPUTS + UNITS, UNITS)),
    *(spec(2 * UNITS), PEEPHOLE),
)
BLOCK_LSTM = sample(BLOCK, (S,) * 7, TIME * LSTM)
BLOCK_GRAD = sample((*BLOCK, *(S,) * 9), BLOCK_GRADIENTS, 2 * TIME * LSTM)

# Two layers in both directions.
LAYERS = 4
STATE, BLOB = spec(LAYERS, ROWS, UNITS), spec(99_999)
Y = spec(TIME, ROWS, 2 * UNITS)
GATES = 2.0 * TIME * ROWS * 4 * UNITS
STACKED = GATES * (2 * INPUTS + 2 * 2 * UNITS + LAYERS * UNITS)
STACK = {"rnn_mode": b"lstm", "direction": b"bidirectional"}
LENGTHS, HOST = spec(ROWS, dtype="int32"), spec(8, dtype="int8")
OUTPUTS, GIVEN = (Y, STATE, STATE), (X, STATE, STATE, BLOB)


def stack(*more: TensorSpec, host: bool = True) -> Sample:
    """Return cuDNN's forward pass."""
    outputs = (*OUTPUTS, BLOB, HOST) if host else (*OUTPUTS, BLOB)
    return sample((*GIVEN, *more), outputs, STACKED, **STACK)


def stack_gradient(*more: TensorSpec, host: bool = True) -> Sample:
    """Return cuDNN's backward pass."""
    given = (*GIVEN, *more, *OUTPUTS, *OUTPUTS, BLOB)
    inputs = (*given, HOST) if host else given
    return sample(inputs, GIVEN, 2 * STACKED, **STACK)


FUSED = {"fused_ops": (b"BiasAdd",)}
SAMPLES = {
    "MatMul": PLAIN,
    "BatchMatMul": BATCHED,
    "BatchMatMulV2": BATCHED,
    "BatchMatMulV3": BATCHED,
    "Einsum": BATCHED._replace(attrs={"equation": b"bmk,bkn->bmn"}),
    "XlaDot": BATCHED,
    "XlaEinsum": BATCHED._replace(attrs={"equation": b"bmk,bkn->bmn"}),
    "_FusedMatMul": sample((LEFT, RIGHT, spec(N)), (OUT,), PRODUCT, **FUSED),
    "_MklFusedBatchMatMulV2": BATCHED,
    "Conv": convolution(IMAGE, KERNEL),
    "Conv2D": convolution(IMAGE, KERNEL),
    "Conv2DBackpropFilter": convolution(IMAGE, WHOLE, RESULT, out=KERNEL),
    "Conv2DBackpropFilterV2": convolution(IMAGE, KERNEL, RESULT, out=KERNEL),
    "Conv2DBackpropInput": convolution(WHOLE, KERNEL, RESULT, out=IMAGE),
    "Conv2DBackpropInputV2": convolution(IMAGE, KERNEL, RESULT, out=IMAGE),
    "Conv3D": in_space(VOLUME, CUBE),
    "Conv3DBackpropFilter": in_space(VOLUME, CUBE, VOLUMES, out=CUBE),
    "Conv3DBackpropFilterV2": in_space(VOLUME, WHOLE, VOLUMES, out=CUBE),
    "Conv3DBackpropInput": in_space(VOLUME, CUBE, VOLUMES, out=VOLUME),
    "Conv3DBackpropInputV2": in_space(WHOLE, CUBE, VOLUMES, out=VOLUME),
    "DepthwiseConv2dNative": of_each_channel(IMAGE, CHANNELS),
    "DepthwiseConv2dNativeBackpropFilter": of_each_channel(
        IMAGE, WHOLE, IMAGE, out=CHANNELS
    ),
    "DepthwiseConv2dNativeBackpropInput": of_each_channel(WHOLE, CHANNELS, IMAGE),
    "FusedPadConv2D": convolution(IMAGE, WHOLE, KERNEL),
    "FusedResizeAndPadConv2D": convolution(IMAGE, WHOLE, WHOLE, KERNEL),
    "XlaConv": convolution(IMAGE, KERNEL, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE),
    "_FusedConv2D": convolution(IMAGE, KERNEL, spec(128)),
    "_FusedConv3D": in_space(VOLUME, CUBE, spec(128)),
    "_FusedDepthwiseConv2dNative": of_each_channel(IMAGE, CHANNELS, spec(64)),
    "BlockLSTM": BLOCK_LSTM,
    "BlockLSTMGrad": BLOCK_GRAD,
    "BlockLSTMGradV2": BLOCK_GRAD,
    "BlockLSTMV2": BLOCK_LSTM,
    "CudnnRNN": stack(host=False),
    "CudnnRNNBackprop": stack_gradient(host=False),
    "CudnnRNNBackpropV2": stack_gradient(),
    "CudnnRNNBackpropV3": stack_gradient(LENGTHS),
    "CudnnRNNV2": stack(),
    "CudnnRNNV3": stack(LENGTHS),
    "GRUBlockCell": sample(GRU, (H,) * 4, 0.75 * LSTM),
    "GRUBlockCellGrad": sample(
        (*GRU, *(H,) * 4), (STEP_X, H, H, spec(ROWS, 2 * UNITS)), 0.75 * LSTM
    ),
    "LSTMBlockCell": sample(CELL, (H,) * 7, LSTM),
    # The products of its gradient are nodes of their own.
    "LSTMBlockCellGrad": sample(
        (*CELL, *(H,) * 8), (H, spec(ROWS, 4 * UNITS), *(PEEPHOLE,) * 3), 0.0
    ),
}
PRODUCTS = [row.op for row in OP_TABLE if row.why.errors is Errors.PRODUCT]
# Some of their inputs are lists, of any length.
_LISTED = frozenset(
    """Einsum _FusedMatMul _MklFusedBatchMatMulV2 _FusedConv2D _FusedConv3D
    _FusedDepthwiseConv2dNative""".split()
)
_MATRIX = ("matmul", "batch_matmul", "conv", "depthwise")


def call_of(op: str) -> OpCall:
    """Return the sample's call."""
    inputs, outputs, attrs, _ = SAMPLES[op]
    return OpCall(op, attrs, inputs, outputs)


def product_flops(call: OpCall, dtype: str = "float32") -> float:
    """Return the flops of all products, however often they are computed."""
    works = works_of(call, dtype)
    return sum(w.times * w.flops for w in works if w.op_class.startswith(_MATRIX))


@pytest.mark.parametrize("op", PRODUCTS)
def test_every_product_is_priced_by_what_it_multiplies(op: str) -> None:
    assert set(SAMPLES) == set(PRODUCTS)
    call, op_def = call_of(op), op_def_registry.get(op)
    if op not in _LISTED:
        assert len(call.inputs) == len(op_def.input_arg)
        assert len(call.outputs) == len(op_def.output_arg)
    assert product_flops(call) == pytest.approx(SAMPLES[op].flops)
    works = works_of(call, "float16")
    assert "elementwise" not in [work.op_class for work in works]
    assert all(work.flops > 0.0 and work.times >= 1.0 for work in works)
    for model in MODELS.values():
        assert model.price(call, "float32").seconds > 0.0


@pytest.mark.parametrize("op", [each for each in SAMPLES if "LSTM" in each])
@pytest.mark.parametrize("device", ["v100", "a100"])
def test_large_lstms_gain_what_their_products_do(op: str, device: str) -> None:
    model, (inputs, outputs, attrs, _) = MODELS[device], SAMPLES[op]

    def larger(each: TensorSpec) -> TensorSpec:
        sizes = (16 * size if size >= 8 else size for size in each.dims)
        return spec(*sizes) if each.dtype == "float32" else each

    call = OpCall(op, attrs, tuple(map(larger, inputs)), tuple(map(larger, outputs)))
    float32, low = (model.price(call, d).seconds for d in ("float32", "float16"))
    peaks = model.profile.roofline.matrix_flops
    assert 1.2 < float32 / low < peaks["float16"] / peaks["float32"]


def test_steps_are_computed_one_after_the_other() -> None:
    short, long = (
        OpCall(
            "CudnnRNN",
            {"rnn_mode": b"gru"},
            (spec(time, 8, 256), spec(1, 8, 256), spec(), BLOB),
            (spec(time, 8, 256), spec(1, 8, 256), spec(), BLOB),
        )
        for time in (100, 1000)
    )
    seconds = [MODELS["v100"].price(call, "float16").seconds for call in (short, long)]
    # 8 rows of a step leave most of the device idle; all steps at once would not.
    assert seconds[1] == pytest.approx(10 * seconds[0], rel=0.2)
    (at_once,) = works_of(call_of("MatMul"), "float16")
    assert at_once.times == 1.0
    flops = product_flops(long)
    assert flops == 2.0 * 1000 * 8 * (256 + 256) * 3 * 256
    assert (
        seconds[1]
        > 20 * flops / MODELS["v100"].profile.roofline.matrix_flops["float16"]
    )


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_cudnn_multiplies_by_all_its_weights_at_each_step(mode: str) -> None:
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    call = call_of("CudnnRNNV3")
    attrs = {**STACK, "rnn_mode": mode.encode()}
    call = OpCall(call.op, attrs, call.inputs, call.outputs)
    # 2 per weight, row and step; the biases are only added.
    layers = (INPUTS + UNITS, INPUTS + UNITS, 3 * UNITS, 3 * UNITS)
    weights = sum(gates * UNITS * width for width in layers)
    assert product_flops(call) == pytest.approx(2.0 * TIME * ROWS * weights)


def test_rows_of_batch_major_inputs_are_told_from_steps() -> None:
    call = call_of("CudnnRNNV3")
    turned = OpCall(
        call.op,
        {**call.attrs, "time_major": False},
        (spec(ROWS, TIME, INPUTS), *call.inputs[1:]),
        call.outputs,
    )
    assert works_of(turned, "float32") == works_of(call, "float32")


def test_convolutions_of_xla_are_priced_in_both_layouts() -> None:
    last = call_of("XlaConv")
    first = OpCall(
        "XlaConv",
        {},
        (spec(8, 64, 16, 16), spec(128, 64, 3, 3), *last.inputs[2:]),
        (spec(8, 128, 16, 16),),
    )
    assert works_of(first, "float32") == works_of(last, "float32")


@pytest.mark.parametrize(
    ("left", "right", "output"),
    [((M, K), (K, N), (M, N)), ((K, M), (N, K), (M, N)), ((M, K), (K,), (M,))],
)
def test_products_of_xla_are_told_by_their_sizes(
    left: tuple[int, ...], right: tuple[int, ...], output: tuple[int, ...]
) -> None:
    call = OpCall("XlaDot", {}, (spec(*left), spec(*right)), (spec(*output),))
    assert product_flops(call) == 2.0 * K * math.prod(output)


RNN = """
    x = Placeholder shape=[64,128,1024]
    h = Placeholder shape=[1,128,1024]
    params = Placeholder shape=[8396800]
    w = Placeholder shape=[1024,1024]
    flat = Const dtype=int32 value=[8192,1024]
    rnn = CudnnRNN(x, h, h, params) rnn_mode=lstm @/device:ABSENT_GPU:0
    rows = Reshape(rnn, flat) @/device:ABSENT_GPU:0
    product = MatMul(rows, w) @/device:ABSENT_GPU:0
    y = Identity(product) @/device:ABSENT_GPU:0
"""


def test_a_recurrent_layer_goes_low_for_what_it_gains() -> None:
    graph_def = graph_from_text(RNN)
    plan = draft_graph(
        graph_def,
        Item(fetch=("y",)),
        target_of("v100", "float16").settings(AmpConfig()),
        shapes=lambda: shapes_from_graph_def(graph_def),
    ).plan
    rows = {decision.slot.node: decision for decision in plan.decisions}
    rnn = rows["rnn"]
    assert rnn.is_low and rows["product"].is_low
    assert rnn.seconds_low is not None
    assert rnn.seconds_float32 > 2.0 * rnn.seconds_low
    # 2 flops per weight, biases left out, row and step, at the rate of a V100.
    flops = 2.0 * 64 * 128 * (2 * 1024) * 4 * 1024
    assert rnn.seconds_float32 > flops / 13.2e12
