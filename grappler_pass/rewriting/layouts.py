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

Not done: what XLA compiles, which lays tensors out by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.eligibility.fused_ops import cast_node, parted, parts_of
from grappler_pass.eligibility.numerics.kernel_limits import ends_in_channels
from grappler_pass.graph.device_types import Home, device_type_at
from grappler_pass.graph.op_table import CONVOLUTION_OPS
from grappler_pass.graph.type_slots import FLOAT32
from grappler_pass.graph.view import Node
from grappler_pass.planning.draft import PRICED, Draft
from grappler_pass.planning.plan import Cause
from grappler_pass.planning.trying import withdrawn
from grappler_pass.planning.uncertainty import Gain
from grappler_pass.rewriting.apply import CAST_STEM, Names
from grappler_pass.rewriting.constant_axes import with_constant_axes
from grappler_pass.rewriting.named_graphs import name_in
from grappler_pass.rewriting.transposes import seconds_added, without_pairs

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
    nodes = draft.view.nodes
    firsts = {nodes[i].name for i in draft.low_nodes if _is_channels_first(nodes[i])}
    if not firsts:
        return draft
    before = _with_parts(draft.rewritten, firsts)
    before = with_constant_axes(before, draft.item.untouchable)
    laid_out = _chosen_anew(draft, before, firsts)
    if laid_out is None:
        return dataclasses.replace(
            draft, rewritten=with_biases_apart(before, settings.home)
        )
    names = [node.name for node in before.node]
    after = with_biases_apart(without_pairs(laid_out, names), settings.home)
    return _charged(draft, after, seconds_added(draft, before, after))


def _is_channels_first(node: Node) -> bool:
    """Return whether a node is a convolution on a GPU that reads channels first."""
    is_one = node.op in CONVOLUTION_OPS or node.op.startswith("_FusedConv")
    return is_one and node.device_type == "GPU" and not ends_in_channels(node.proto)


def _with_parts(graph_def: GraphDef, names: Collection[str]) -> GraphDef:
    """Return a copy with some nodes in parts: the layout of a fused one is fixed."""
    copy = GraphDef(versions=graph_def.versions, library=graph_def.library)
    unused = Names(node.name for node in graph_def.node).unused
    for node in graph_def.node:
        parts = parts_of(node) if node.name in names else ()
        if parts:
            dtype = node.attr["T"].type
            copy.node.extend(parted(node, dtype, unused, has_flat_bias=True))
        else:
            copy.node.add().CopyFrom(node)
    return copy


def _chosen_anew(
    draft: Draft, graph_def: GraphDef, firsts: Collection[str]
) -> GraphDef | None:
    """Return a graph as TensorFlow lays it out for 16 bits; None where it does not.

    A convolution that nobody reads makes those in 16 bits count as the majority. Where
    they are not, those in float32 are not shown to TensorFlow, and keep their layout.
    """
    assert draft.settings.layouts is not None, "looked at before"
    asked = GraphDef()
    asked.CopyFrom(graph_def)
    hidden = _hidden(asked, draft.low_dtype, draft.settings.home)
    for node in asked.node:
        if node.name in hidden:
            node.device = node.device.replace("GPU", "CPU")
    device = next(node.device for node in graph_def.node if node.name in firsts)
    asked.node.extend(_uncounted(draft.low_dtype, device))
    kept = tuple(sorted(draft.item.untouchable & draft.view.index.keys()))
    answer = draft.settings.layouts(asked, kept)
    if answer is None:
        return None
    given = {node.name: node for node in graph_def.node}
    laid_out = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in answer.node:
        if not node.name.startswith(f"{_STEM}/"):
            laid_out.node.append(_placed_as(given.get(node.name, node), node))
    return laid_out


def _placed_as(given: NodeDef, node: NodeDef) -> NodeDef:
    """Return a node, in place, that is on the device of another, or near the same."""
    node.device = given.device
    node.attr.pop(_COLOCATION, None)
    if _COLOCATION in given.attr:
        node.attr[_COLOCATION].CopyFrom(given.attr[_COLOCATION])
    return node


def _hidden(graph_def: GraphDef, low_dtype: int, home: Home | None) -> set[str]:
    """Name the nodes whose layout stays."""
    laid_out = [
        node
        for node in graph_def.node
        if "data_format" in node.attr and device_type_at(node, home) == "GPU"
    ]
    others = [node for node in laid_out if node.attr["T"].type != low_dtype]
    counted = sum(node.op in _COUNTED for node in laid_out)
    if sum(node.op in _COUNTED for node in others) <= counted / 2:
        return set()
    return {node.name for node in others}


def _uncounted(low_dtype: int, device: str) -> Iterator[NodeDef]:
    """Yield a convolution in 16 bits that reads constants, and that nobody reads."""
    one = NodeDef(name=f"{_STEM}/one", op="Const", device=device)
    one.attr["dtype"].type = one.attr["value"].tensor.dtype = low_dtype
    for _ in range(4):
        one.attr["value"].tensor.tensor_shape.dim.add(size=1)
    one.attr["value"].tensor.half_val.append(0)
    conv = NodeDef(name=f"{_STEM}/conv", op="Conv2D", device=device)
    conv.input.extend([one.name, one.name])
    conv.attr["T"].type = low_dtype
    conv.attr["strides"].list.i.extend([1] * 4)
    conv.attr["padding"].s = b"VALID"
    yield from (one, conv)


def with_biases_apart(graph_def: GraphDef, home: Home | None) -> GraphDef:
    """Return the graph with biases in float32 where a fused float16 one is wrong.

    Before   conv(float16, NCHW) --> bias(float16) --> relu
    After    conv(float16, NCHW) --> cast --> bias(float32) --> cast --> relu
    """
    nodes = {node.name: node for node in graph_def.node}
    on_gpu = (n for n in graph_def.node if device_type_at(n, home) == "GPU")
    wrong = [node.name for node in on_gpu if _would_be_wrong(node, nodes)]
    if not wrong:
        return graph_def
    copy = GraphDef(versions=graph_def.versions, library=graph_def.library)
    unused = Names(nodes).unused
    for node in graph_def.node:
        if node.name in wrong:
            copy.node.extend(_apart(node, unused))
        else:
            copy.node.add().CopyFrom(node)
    return copy


def _would_be_wrong(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Return whether a bias can be fused with a convolution of another layout."""
    if node.op != "BiasAdd":
        return False
    before = nodes[name_in(node.input[0])]
    is_half = before.op == "Conv2D" and before.attr["T"].type == types_pb2.DT_HALF
    return is_half and not ends_in_channels(before)


def _apart(node: NodeDef, unused: Callable[[str], str]) -> Iterator[NodeDef]:
    """Yield a bias in float32 with the casts around it; the last has its name."""
    bias = NodeDef()
    bias.CopyFrom(node)
    bias.name = unused(f"{node.name}/tf_amp_BiasAdd")
    bias.attr["T"].type = FLOAT32
    for position in range(2):
        name = unused(f"{bias.name}/{CAST_STEM}float32")
        types = (types_pb2.DT_HALF, FLOAT32)
        yield cast_node(name, node.input[position], types, node)
        bias.input[position] = name
    yield bias
    yield cast_node(node.name, bias.name, (FLOAT32, types_pb2.DT_HALF), node)


def _charged(draft: Draft, rewritten: GraphDef, seconds: float) -> Draft:
    """Return a draft with another graph, which takes so much longer than planned."""
    plan = draft.plan
    plan = dataclasses.replace(plan, seconds_after=plan.seconds_after + seconds)
    draft = dataclasses.replace(draft, rewritten=rewritten, plan=plan)
    settings = draft.settings
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
