"""The op lists as edited by the user hold for what TensorFlow has fused."""

from __future__ import annotations

import pytest
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import op_def_registry

from grappler_pass.eligibility.fused_ops import needs_split
from grappler_pass.graph import op_table
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, DENY, INFER
from grappler_pass.graph.type_slots import DTYPE_ENUMS
from grappler_pass.planning.plan import Cause
from tests.coloring import color
from tests.fresh_process import output_of
from tests.onednn import needs_onednn
from tf_amp.config.setting_values import LIST_PREFIX

SHIPPED = OpLists.for_dtype("bfloat16")
FUSED = """
    x = Placeholder
    w = Placeholder
    b = Placeholder
    first = MatMul(x, w)
    fused = _FusedMatMul(first, w, b) num_args=1 fused_ops=[BiasAdd,Relu]
    after = Tanh(fused)
    last = MatMul(after, w)
    fetch = Identity(last)
"""
LAYERS = '''
kernel, bias = tf.Variable(tf.eye(8)), tf.Variable(tf.zeros(8))
mask = tf.Variable(tf.zeros([1, 1, 8, 8]))

def image(x):
    return tf.reshape(x, [1, 1, 8, 8])

def convolution(x):
    return tf.nn.conv2d(image(x), tf.reshape(kernel, [1, 1, 8, 8]), 1, "SAME")

def bias_added(x):
    return tf.nn.relu(tf.nn.bias_add(x @ kernel, bias))

def added(x):
    return tf.nn.relu(x @ kernel + bias)

def convolved(x):
    return tf.nn.relu(tf.nn.bias_add(convolution(x), bias))

def attended(x):
    return tf.matmul(image(x), image(x), transpose_b=True) * 0.125 + mask

def normalized(x):
    normal = tf.compat.v1.nn.fused_batch_norm(convolution(x), bias, bias)[0]
    # Behind the last product it would stay float32.
    return convolution(tf.nn.relu(normal))

def low(*fns):
    """Print the fused ops of each function that are in 16 bits."""
    for fn in fns:
        count = len(tf_amp.plans())
        tf.function(fn)(X)
        rows = [row for plan in tf_amp.plans()[count:] for row in plan.decisions]
        ops = {row.op for row in rows if row.is_low and "Fused" in row.op}
        print(fn.__name__, *ops)
'''
FUSED_OPS = {
    "bias_added": "_FusedMatMul",
    "added": "_FusedMatMul",
    "convolved": "_FusedConv2D",
    "attended": "_MklFusedBatchMatMulV2",
    "normalized": "_FusedBatchNormEx",
}


def fused_node(op: str, *names: str) -> NodeDef:
    node = NodeDef(op=op)
    node.attr["fused_ops"].list.s.extend(name.encode() for name in names)
    return node


def test_every_op_that_a_fused_one_may_be_made_of_exists() -> None:
    tables = (
        op_table.ROOTS.values(),
        op_table._WITHIN.values(),
        (each.stands_for for each in op_table.EPILOGUES.values()),
        (each.part for each in op_table.EPILOGUES.values()),
    )
    ops = {op for table in tables for names in table for op in names.split()}
    assert [op for op in sorted(ops) if op_def_registry.get(op) is None] == []


@pytest.mark.parametrize("low_dtype", ["bfloat16", "float16"])
def test_a_fused_op_is_shipped_on_the_list_of_what_it_begins_with(
    low_dtype: str,
) -> None:
    lists = OpLists.for_dtype(low_dtype)
    for fused, root in op_table.ROOTS.items():
        if op_def_registry.get(fused) is not None:
            assert lists.list_of(fused) == lists.list_of(root), fused


def test_a_fused_op_is_priced_as_its_parts_where_it_is_split_into_them() -> None:
    split = set()
    for op in op_table.ROOTS:
        op_def = op_def_registry.get(op)
        if op_def is None or all(attr.name != "fused_ops" for attr in op_def.attr):
            continue
        node = fused_node(op, "BiasAdd")
        node.input.extend("xwb")
        if needs_split(node, DTYPE_ENUMS["bfloat16"], "CPU"):
            split.add(op)
    assert split == op_table.SPLIT_IN_BFLOAT16


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        ({"add": {DENY: ["MatMul"]}, "remove": {ALLOW: ["MatMul"]}}, DENY),
        ({"add": {DENY: ["BiasAdd"]}, "remove": {INFER: ["BiasAdd"]}}, DENY),
        ({"add": {DENY: ["AddV2"]}, "remove": {INFER: ["AddV2"]}}, DENY),
        ({"remove": {ALLOW: ["MatMul"]}}, None),
        ({"remove": {"clear": ["Relu"]}}, None),
        ({"add": {INFER: ["MatMul"]}, "remove": {ALLOW: ["MatMul"]}}, INFER),
        ({"add": {INFER: ["Relu"]}, "remove": {"clear": ["Relu"]}}, ALLOW),
        ({"add": {DENY: ["Tanh"]}, "remove": {INFER: ["Tanh"]}}, ALLOW),
        ({"remove": {ALLOW: ["_FusedMatMul"]}}, None),
        (
            {"add": {DENY: ["Relu"]}, "remove": {ALLOW: ["MatMul"], "clear": ["Relu"]}},
            DENY,
        ),
    ],
)
def test_a_fused_node_is_on_the_strictest_list_of_its_moved_parts(
    edit: dict[str, dict[str, list[str]]], place: str | None
) -> None:
    node = fused_node("_FusedMatMul", "BiasAdd", "Relu")
    assert SHIPPED.place_of(node).list_name == ALLOW
    found = SHIPPED.edited(**edit).place_of(node)
    assert found.list_name == place
    assert found.op in (node.op, *op_table.ops_within(node))


def test_a_denied_part_of_a_fused_node_is_named_and_taints_what_it_feeds() -> None:
    lists = SHIPPED.edited(add={DENY: ["Relu"]}, remove={"clear": ["Relu"]})
    colored = color(FUSED, fetch="fetch", lists=lists)
    assert colored.colors("first fused after last") == "L F F L"
    assert colored.cause("fused") is Cause.DENY
    assert colored.detail("fused") == (
        "it counts as the Relu in it, and you have put it there"
    )
    assert colored.cause("after") is Cause.DENY_TAINT
    assert color(FUSED, fetch="fetch").colors("first fused after last") == "L L L L"


def test_a_part_that_was_taken_off_its_list_is_named() -> None:
    colored = color(
        FUSED, fetch="fetch", lists=SHIPPED.edited(remove={ALLOW: ["MatMul"]})
    )
    assert colored.colors("first fused last") == "F F F"
    assert (colored.cause("fused"), colored.detail("fused")) == (
        Cause.NOT_LISTED,
        "it counts as the MatMul in it",
    )


@needs_onednn
def test_lists_hold_for_what_a_running_program_had_fused() -> None:
    lines = output_of(
        LAYERS
        + """
every = (bias_added, added, convolved, attended, normalized)
roots = ["MatMul", "Conv2D", "BatchMatMulV2", "FusedBatchNormV3"]
tf_amp.enable("bfloat16", opt_level="O2")
low(*every)
tf_amp.enable("bfloat16", opt_level="O2", lists={"add": {"deny": roots}})
low(*every)
off = {"allow": roots[:3], "infer": roots[3:]}
tf_amp.enable("bfloat16", opt_level="O2", lists={"remove": off})
low(*every)
parts = ["BiasAdd", "AddV2", "Relu"]
tf_amp.enable("bfloat16", opt_level="O2", lists={"add": {"deny": parts}})
low(*every)
"""
    )
    assert lines[:5] == [f"{name} {op}" for name, op in FUSED_OPS.items()]
    assert lines[5:] == [*FUSED_OPS] * 3


def test_variables_hold_for_what_a_running_program_had_fused() -> None:
    lines = output_of(
        LAYERS
        + f"""
import os

for name, ops in (
    ("DENYLIST_ADD", ""),
    ("DENYLIST_ADD", "MatMul,Conv2D"),
    ("BLACKLIST_ADD", "BiasAdd"),
    ("ALLOWLIST_REMOVE", "MatMul, Conv2D"),
    ("CLEARLIST_REMOVE", "Relu"),
):
    os.environ["{LIST_PREFIX}" + name] = ops
    tf_amp.enable()
    low(bias_added, convolved)
    del os.environ["{LIST_PREFIX}" + name]
""",
        env={"TF_AMP_DTYPE": "bfloat16", "TF_AMP_OPT_LEVEL": "O2"},
    )
    assert lines[:2] == ["bias_added _FusedMatMul", "convolved _FusedConv2D"]
    assert lines[2:] == ["bias_added", "convolved"] * 4
