"""Fused products in bfloat16 run as batched ones where that was measured as faster."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from grappler_pass.fusions import RULES
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite, optimize
from tests.grappler_pass.rewriting.test_rewriting import ops, settings
from tests.text_graph import graph_from_text
from tf_amp.config import devices

AMX = {"CPU": CostModel(DeviceProfile.load("cpu-amx-bf16"))}
WITHOUT = {"CPU": CostModel(DeviceProfile.load("cpu-avx512-bf16"))}
GRAPH = """
x = Placeholder
w = Placeholder
b = Placeholder
product = _FusedMatMul(x, w, b) fused_ops=BiasAdd num_args=1
last = MatMul(product, v)
v = Placeholder
fetch = Sin(last)
"""
SHAPES = {
    "x": (2048, 32),
    "w": (32, 1024),
    "b": (1024,),
    "v": (1024, 8),
    "product": (2048, 1024),
    "last": (2048, 8),
    "fetch": (2048, 8),
}
ATTRS = {"fused_ops": (b"BiasAdd",)}
SPECS = (
    tuple(TensorSpec(SHAPES[name], "float32") for name in "xwb"),
    (TensorSpec(SHAPES["product"], "float32"),),
)
BATCHED = "_MklFusedBatchMatMulV2"


def rewrite(graph: str = GRAPH, shapes: object = None, **others: object) -> Rewrite:
    chosen = {"models": AMX, "fusions": RULES, "onednn": True} | others
    known = {name: (shape,) for name, shape in (SHAPES | (shapes or {})).items()}
    return optimize(
        graph_from_text(graph),
        Item(("fetch",)),
        dataclasses.replace(settings(), **chosen),
        shapes=lambda: known,
    )


def test_a_product_with_a_bias_is_a_batch_of_one() -> None:
    made = rewrite(GRAPH.replace("(x, w, b)", "(x, w, b, ^v)"))
    assert BATCHED in ops(made.graph_def)
    assert "_FusedMatMul" not in ops(made.graph_def)
    fused = next(n for n in made.graph_def.node if n.op == BATCHED)
    assert list(fused.attr["fused_ops"].list.s) == [b"Mul", b"Add"]
    assert fused.input[-1] == "^v"
    fused_kernel = OpCall("_FusedMatMul", ATTRS, *SPECS)
    product = OpCall("MatMul", {}, SPECS[0][:2], SPECS[1])
    price, least = (
        AMX["CPU"].price(call, "bfloat16").seconds for call in (fused_kernel, product)
    )
    # That of the kernel that runs.
    assert price == pytest.approx(least + 0.000478)


@pytest.mark.parametrize(
    ("graph", "shapes", "others"),
    [
        # Nothing was measured there.
        (GRAPH, {}, {"models": WITHOUT}),
        (GRAPH, {}, {"onednn": False}),
        (GRAPH, {}, {"fusions": ()}),
        # What XLA compiles.
        (GRAPH, {}, {"fuses": True}),
        # Kernels of batches are wrong for some transposed operands.
        (GRAPH.replace("num_args", "transpose_b=true num_args"), {"w": (1024, 32)}, {}),
        # GELU would round once more.
        (GRAPH.replace("=BiasAdd", "=BiasAdd,GeluExact"), {}, {}),
        # The nodes around it take longer than they save.
        (GRAPH, {"x": (16, 32), "product": (16, 1024)}, {}),
        (GRAPH, {"x": (2048, None)}, {}),
        # A guessed shape may have another rank.
        (GRAPH, {"x": (2048,)}, {}),
    ],
)
def test_others_stay(graph: str, shapes: object, others: dict[str, object]) -> None:
    assert BATCHED not in ops(rewrite(graph, shapes, **others).graph_def)


@pytest.mark.skipif(
    "avx512f" not in devices.cpu_flags(), reason="oneDNN has no bfloat16 here"
)
@pytest.mark.parametrize("activation", ["", ",Relu", ",Relu6"])
def test_its_values_are_those_of_float32_rounded_once(activation: str) -> None:
    graph = GRAPH.replace("=BiasAdd", f"=BiasAdd{activation}")
    data = AMX["CPU"].profile.data
    # Where activations take no time.
    free = {"axes": {"elements": [1, 1 << 30]}, "seconds": {"bfloat16": [1e-9, 1e-9]}}
    classes = data["classes"] | dict.fromkeys(("Relu", "Relu6"), free)
    profile = DeviceProfile.from_json(data | {"classes": classes})
    made = rewrite(graph, models={"CPU": CostModel(profile)})
    assert BATCHED in ops(made.graph_def)
    random = np.random.default_rng(0)
    x, w, b = (random.integers(-2, 3, SHAPES[n]).astype(np.float32) for n in "xwb")
    fed = {"x:0": x, "w:0": w, "b:0": b}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(made.graph_def, name="")
        found = session.run("product:0", fed).astype(np.float32)
    most = {",Relu": np.inf, ",Relu6": 6.0}
    right = x @ w + b
    if activation:
        right = np.clip(right, 0.0, most[activation])
    assert np.array_equal(found, right)
