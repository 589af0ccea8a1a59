"""Every op that starts low precision is priced by the products that it computes."""

from __future__ import annotations

import math
import pathlib
import re
from typing import NamedTuple

import pytest
from tensorflow.python.framework import op_def_registry

from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.costs.op_work import works_of
from grappler_pass.graph.op_table import OP_TABLE, Errors
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import draft_graph
from tests.op_calls import MODELS, op_call, spec
from tests.text_graph import graph_from_text
from tf_amp.config.amp_config import AmpConfig
from tf_amp.tools.target_device import target_of


class Sample(NamedTuple):
    """A call, and the flops of its products counted by hand."""

    call: OpCall
    flops: float


def _read_samples() -> dict[str, Sample]:
    found = {}
    text = pathlib.Path(__file__).with_name("products.txt").read_text(encoding="utf-8")
    for line in re.findall(r"^\w.*$", text, re.MULTILINE):
        called, factors = line.split(" | ")
        ops = re.match(r"(?:_*[A-Z]\w* )+", called)[0]
        for op in ops.split():
            flops = float(math.prod(map(int, factors.split())))
            found[op] = Sample(op_call(f"{op} {called[len(ops) :]}"), flops)
    return found


SAMPLES = _read_samples()
PRODUCTS = [row.op for row in OP_TABLE if row.why.errors is Errors.PRODUCT]
# Some of their inputs are lists, of any length.
_LISTED = frozenset(
    """Einsum _FusedMatMul _MklFusedBatchMatMulV2 _FusedConv2D _FusedConv3D
    _FusedDepthwiseConv2dNative""".split()
)
_MATRIX = ("matmul", "batch_matmul", "conv", "depthwise")


def product_flops(call: OpCall, dtype: str = "float32") -> float:
    """Return the flops of all products, however often they are computed."""
    works = works_of(call, dtype)
    return sum(w.times * w.flops for w in works if w.op_class.startswith(_MATRIX))


@pytest.mark.parametrize("op", PRODUCTS)
def test_every_product_is_priced_by_what_it_multiplies(op: str) -> None:
    assert set(SAMPLES) == set(PRODUCTS)
    call, op_def = SAMPLES[op].call, op_def_registry.get(op)
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
    model, (_, attrs, inputs, outputs) = MODELS[device], SAMPLES[op].call

    def larger(each: TensorSpec) -> TensorSpec:
        sizes = (16 * size if size >= 8 else size for size in each.dims)
        return spec(*sizes) if each.dtype == "float32" else each

    call = OpCall(op, attrs, tuple(map(larger, inputs)), tuple(map(larger, outputs)))
    float32, low = (model.price(call, d).seconds for d in ("float32", "float16"))
    peaks = model.profile.roofline.matrix_flops
    assert 1.2 < float32 / low < peaks["float16"] / peaks["float32"]


def test_steps_are_computed_one_after_the_other() -> None:
    short, long = (
        op_call(
            f"CudnnRNN {time}x8x256 1x8x256 () 99999 -> {time}x8x256 1x8x256 () 99999 "
            "rnn_mode=b'gru'"
        )
        for time in (100, 1000)
    )
    seconds = [MODELS["v100"].price(call, "float16").seconds for call in (short, long)]
    # 8 rows of a step leave most of the device idle; all steps at once would not.
    assert seconds[1] == pytest.approx(10 * seconds[0], rel=0.2)
    (at_once,) = works_of(SAMPLES["MatMul"].call, "float16")
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
    call = SAMPLES["CudnnRNNV3"].call
    call = call._replace(attrs={**call.attrs, "rnn_mode": mode.encode()})
    # 2 per weight, row and step; the biases are only added.
    weights = sum(gates * 64 * width for width in (48 + 64, 48 + 64, 3 * 64, 3 * 64))
    assert product_flops(call) == pytest.approx(2.0 * 10 * 32 * weights)


def test_rows_of_batch_major_inputs_are_told_from_steps() -> None:
    call = SAMPLES["CudnnRNNV3"].call
    turned = call._replace(
        attrs={**call.attrs, "time_major": False},
        inputs=(spec(32, 10, 48), *call.inputs[1:]),
    )
    assert works_of(turned, "float32") == works_of(call, "float32")


def test_convolutions_of_xla_are_priced_in_both_layouts() -> None:
    last = SAMPLES["XlaConv"].call
    first = op_call("XlaConv 8x64x16x16 128x64x3x3 4:int32*5 -> 8x128x16x16")
    assert works_of(first, "float32") == works_of(last, "float32")


@pytest.mark.parametrize(
    ("called", "multiplied"),
    [
        ("128x256 256x512 -> 128x512", 128 * 256 * 512),
        ("256x128 512x256 -> 128x512", 128 * 256 * 512),
        ("128x256 256 -> 128", 128 * 256),
    ],
)
def test_products_of_xla_are_told_by_their_sizes(called: str, multiplied: int) -> None:
    assert product_flops(op_call(f"XlaDot {called}")) == 2.0 * multiplied


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
