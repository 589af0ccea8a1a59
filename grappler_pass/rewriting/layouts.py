"""Have convolutions in 16 bits read channels last, as tensor cores do.

TensorFlow chooses layouts once, before this pass, when all is in float32: on most GPUs
channels first. Asked again, it chooses for 16 bits. Left as they were, cuDNN would
transpose on every call, and float16 would be wrong where TensorFlow fuses a bias and
Relu behind: from compute capability 7.0 on it then reads channels last, whatever the
node says (conv_ops_fused_impl.h).

    Before   x --> transpose --> conv(float16, NCHW) --> relu --> transpose
    After    x --> conv(float16, NHWC) --> relu

Convolutions in float32 go along where those in 16 bits are the majority, as they do in
programs that are written in 16 bits.

Its choice of layouts puts ops that map axes in front of what reads axes or sizes, and
does not move what reads them a second time. So axes that it has mapped are constants:

    Before   const [1, 2] --> DataFormatDimMap(NHWC, NCHW) --> mean
    After    const [2, 3] --> mean

Not done: what XLA compiles, which lays tensors out by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import mark
from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.eligibility.fused_ops import cast_node, parts_of, split_fused
from grappler_pass.eligibility.known_wrong import ends_in_channels
from grappler_pass.graph.editing import (
    name_in,
    new_constant,
    new_node,
    texts_of,
)
from grappler_pass.graph.op_table import CONVOLUTION_OPS
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import DTYPE_NAMES, FLOAT32
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.graph.walks import reached
from grappler_pass.planning.coloring import Gain
from grappler_pass.planning.decisions import withdrawn
from grappler_pass.planning.draft import PRICED, Draft
from grappler_pass.planning.plan import Cause
from grappler_pass.rewriting.apply import CAST_STEM

# What TensorFlow counts to choose (generic_layout_optimizer.cc).
_COUNTED = frozenset({"Conv2D", "Conv3D"})
_STEM = "tf_amp_layout"
_COLOCATION = "_class"


def lay_out(draft: Draft) -> Draft:
    """Return a draft whose convolutions in 16 bits on GPUs read channels last.

    The plan is charged for transposes; one that gains too little then is withdrawn.
    """
    settings = draft.settings
    if settings.layouts is None or settings.fuses or not any(draft.low):
        return draft
    # Convolutions on GPUs that read channels first.
    firsts = [
        node.name
        for node in map(draft.view.nodes.__getitem__, sorted(draft.low_nodes))
        if node.op in CONVOLUTION_OPS or node.op.startswith("_FusedConv")
        if node.device_type == "GPU" and not ends_in_channels(node.proto)
    ]
    if not firsts:
        return draft
    graph, kept = draft.view_of(draft.rewritten), draft.item.untouchable
    for node in map(graph.proto, firsts):
        # The layout of a fused one is fixed, that of its parts is not.
        if parts_of(node):
            dtype = node.attr["T"].type
            *parts, last = split_fused(
                node, dtype, graph.unused, device_type="", has_flat_bias=True
            )
            graph.put(last, *parts)
    fix_axes(graph, kept)
    given = graph.to_graph_def()
    asked = _asked(graph, given, draft.low_dtype, graph.proto(firsts[0]).device)
    answer = settings.layouts(asked, tuple(sorted(kept & draft.view.index.keys())))
    if answer is None:
        _take_biases_apart(graph)
        return dataclasses.replace(draft, rewritten=graph.to_graph_def())
    laid_out = GraphDef(versions=given.versions, library=given.library)
    for node in answer.node:
        if node.name.startswith(f"{_STEM}/"):
            continue
        node.attr.pop(_COLOCATION, None)
        if node.name in graph.index:
            before = graph.proto(node.name)
            node.device = before.device
            if _COLOCATION in before.attr:
                node.attr[_COLOCATION].CopyFrom(before.attr[_COLOCATION])
        laid_out.node.append(node)
    after = draft.view_of(without_pairs(Graph(laid_out), graph.index))
    _take_biases_apart(after)
    added = _transpose_seconds(draft, after) - _transpose_seconds(draft, graph)
    return _charged(draft, after.to_graph_def(), added)


def _charged(draft: Draft, rewritten: GraphDef, seconds: float) -> Draft:
    """Return a draft with another graph, which takes so much longer than planned."""
    plan, settings = draft.plan, draft.settings
    plan = dataclasses.replace(plan, seconds_after=plan.seconds_after + seconds)
    # How fast the types are with what is added is not known apart from fusions.
    plan = dataclasses.replace(plan, low_speedup=0.0) if seconds > 0.0 else plan
    draft = dataclasses.replace(
        draft, rewritten=rewritten, plan=plan, low_speedup=plan.low_speedup
    )
    if settings.opt_level != PRICED or draft.recalled is not None:
        return draft
    seconds = plan.seconds_before - plan.seconds_after
    gain = Gain(seconds, draft.gain_error, plan.seconds_before)
    is_sure = gain.is_sure(settings.margin)
    if seconds <= 0.0 or (settings.own_steps is None and not is_sure):
        return withdrawn(draft, Cause.MARGIN)
    return dataclasses.replace(
        draft,
        is_sure=draft.is_sure and is_sure,
        is_certain=draft.is_certain and gain.is_certain,
    )


def _asked(graph: Graph, given: GraphDef, dtype: int, device: str) -> GraphDef:
    """Return what TensorFlow is asked to lay out, from a graph and its GraphDef.

    A convolution that nobody reads makes those in 16 bits count as the majority. Where
    they are not, those in float32 are not shown to TensorFlow, and keep their layout.
    """
    asked = GraphDef()
    asked.CopyFrom(given)
    on_gpu = [
        node
        for node in asked.node
        if "data_format" in node.attr
        and graph.nodes[graph.index[node.name]].device_type == "GPU"
    ]
    others = [node for node in on_gpu if node.attr["T"].type != dtype]
    counted = sum(node.op in _COUNTED for node in on_gpu)
    if sum(node.op in _COUNTED for node in others) > counted / 2:
        for node in others:
            node.device = node.device.replace("GPU", "CPU")
    name = f"{_STEM}/one"
    one = new_constant(name, 0, dtype, (1, 1, 1, 1), device=device)
    attrs = {"T": dtype, "strides": [1] * 4, "padding": b"VALID"}
    conv = new_node("Conv2D", f"{_STEM}/conv", [name, name], device, **attrs)
    asked.node.extend((one, conv))
    return asked


def _take_biases_apart(graph: Graph) -> None:
    """Add biases in float32, in place, where a fused float16 one is wrong.

    That is one that can be fused with a convolution of another layout.

    Before   conv(float16, NCHW) --> bias(float16) --> relu
    After    conv(float16, NCHW) --> cast --> bias(float32) --> cast --> relu
    """
    half = types_pb2.DT_HALF
    for biased in graph.nodes.copy():
        if biased.op != "BiasAdd" or biased.device_type != "GPU":
            continue
        node, conv = biased.proto, graph.nodes[biased.inputs[0].node].proto
        is_half = conv.op == "Conv2D" and conv.attr["T"].type == half
        if not is_half or ends_in_channels(conv):
            continue
        bias = NodeDef()
        bias.CopyFrom(node)
        bias.name = graph.unused(f"{node.name}/tf_amp_BiasAdd")
        bias.attr["T"].type = FLOAT32
        casts = []
        for position in range(2):
            name = graph.unused(f"{bias.name}/{CAST_STEM}float32")
            casts.append(cast_node(name, node.input[position], (half, FLOAT32), node))
            bias.input[position] = name
        last = cast_node(node.name, bias.name, (FLOAT32, half), node)
        graph.put(last, *casts, bias)


_MAPS, _PERMUTES = "DataFormatDimMap", "DataFormatVecPermute"


def fix_axes(graph: Graph, kept: Collection[str]) -> None:
    """Make mapped constants constants, in place, but for the kept nodes."""
    for node in graph.nodes.copy():
        if node.op not in (_MAPS, _PERMUTES) or node.name in kept:
            continue
        source = graph.nodes[node.inputs[0].node].proto
        if source.op != "Const":
            continue
        given = tf.make_ndarray(source.attr["value"].tensor)
        mapped = _mapped(node.proto, given)
        if mapped is not None:
            made = new_constant(
                node.name,
                mapped,
                shape=given.shape,
                inputs=dict.fromkeys((*texts_of(node.proto)[1:], *texts_of(source))),
                device=node.device,
            )
            mark(made, node.proto)
            graph.put(made)


def _mapped(node: NodeDef, value: np.ndarray) -> np.ndarray | None:
    """Return what a node makes of a constant; None of what has other sizes."""
    # Reading an absent key would create it; both are the defaults.
    attrs = {name: node.attr[name].s.decode() for name in node.attr if "format" in name}
    source = attrs.get("src_format", "NHWC")
    target = attrs.get("dst_format", "NCHW")
    if node.op == _MAPS:
        axes = [target.index(source[axis]) for axis in value.reshape(-1)]
        return np.array(axes, value.dtype)
    if len(np.atleast_1d(value)) != len(source):
        return None
    return value[[source.index(axis) for axis in target]]


def without_pairs(graph: Graph, given: Iterable[str]) -> GraphDef:
    """Return a copy in which nothing reads a tensor that is transposed and back.

    Before   x --> transpose --> transpose --> conv
    After    x --> conv

    Args:
      graph: not written.
      given: the names of nodes that stay, read or not.
    """
    # Each tensor that is transposed twice, and what it is equal to.
    same: dict[str, str] = {}
    for node in graph.nodes:
        if order := _order(node, graph):
            before = graph.nodes[node.inputs[0].node]
            first = _order(before, graph)
            if len(first) == len(order) and [first[i] for i in order] == sorted(first):
                same[node.name] = texts_of(before.proto)[0]

    def read_by(node: NodeDef) -> Iterator[str]:
        for text in texts_of(node):
            while text in same:
                text = same[text]
            yield text

    def sources(name: str) -> list[str]:
        return [name_in(text) for text in read_by(graph.proto(name))]

    staying = set(reached(given, sources))
    return graph.redirected(read_by, graph.index.keys() - staying)


def _order(node: Node, graph: Graph) -> list[int]:
    """Return the axes that a transpose reads one after the other, if it says so."""
    if node.op != "Transpose" or len(node.proto.input) != 2:
        return []
    axes = graph.nodes[node.inputs[1].node].proto
    if axes.op != "Const":
        return []
    values = tf.make_ndarray(axes.attr["value"].tensor)
    return [int(axis) for axis in np.atleast_1d(values)]


def _transpose_seconds(draft: Draft, graph: Graph) -> float:
    """Return the seconds per step of a graph's transposes that are read."""
    view, models = draft.view, draft.settings.models
    total = 0.0
    for node in graph.nodes:
        is_read = graph.output_ports(node.index) or graph.control_readers(node.index)
        if node.op != "Transpose" or not is_read:
            continue
        dtype = DTYPE_NAMES.get(node.proto.attr["T"].type)
        if dtype is None:
            continue
        port = node.inputs[0]
        while (name := graph.nodes[port.node].name) not in view.index:
            # A new node: its operand is as large.
            port = graph.nodes[port.node].inputs[0]
        port = Port(view.index[name], port.output)
        spec = TensorSpec(known_shape(draft.shapes, view, port), dtype)
        model = models.get(node.device_type) or models["CPU"]
        call = OpCall("Transpose", {}, (spec,), (spec,))
        total += model.price(call, dtype).seconds * view.weight(port.node)
    return total
