"""Rows: one kernel for a product of rows, its bias and its activation.

    Before   MatMul(x, w) --> Reshape --> BiasAdd --> activation
    After    _FusedMatMul(x, w, bias) with the activation --> Reshape

That is a Dense layer on inputs of three and more axes, as Keras writes it: it
multiplies rows. TensorFlow's remapper does the same, but only where no Reshape lies in
between, and GELU in 16 bits only if it finds all of its parts in 16 bits. Here the
kernel counts as one operation, which rounds once. Each value is computed from the same
ones as before.

Not done: where anything else reads what lies between. So the activation stays where its
gradient reads what it activates, as that of GELU does; where channels do not stay last;
on GPUs, where it was not measured. GELU is a kernel of oneDNN.

References: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from grappler_pass.eligibility.known_wrong import ends_in_channels
from grappler_pass.fusions.matching import (
    Found,
    Match,
    NewNodes,
    Pattern,
    PricedGraph,
    is_float32,
    part_of,
    scalar_of,
)
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Node

_ROWS = Pattern(
    """
    product = MatMul(x, weights)
    reshape = Reshape(product, sizes)
    bias = BiasAdd(reshape, vector)
    """
)
# Activations that a kernel of a product takes, in every build of TensorFlow.
_ACTIVATIONS = ("Relu", "Relu6", "Elu", "LeakyRelu")
# What GELU consists of, and its two forms by the names of the kernel.
_OPERATIONS: Mapping[str, Callable[..., float]] = {
    "AddV2": operator.add,
    "Erf": math.erf,
    "Erfc": math.erfc,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Pow": math.pow,
    "Square": lambda x: x * x,
    "Tanh": math.tanh,
}
_MOST_NODES = 12
# Enough to know one from any other: what is activated, and what that makes of it.
_SAMPLES = (-3.0, -1.1, -0.3, 0.4, 1.7)
_GELUS: Mapping[str, Sequence[float]] = {
    "GeluExact": [0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))) for x in _SAMPLES],
    "GeluApproximate": [
        0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        for x in _SAMPLES
    ],
}


def rows(graph: PricedGraph) -> Iterator[Match]:
    """Yield products of rows that one kernel computes with bias and activation.

    Of the bias and what activates it only the last is read elsewhere.
    """
    for product in graph.view.nodes:
        if product.op != "MatMul" or graph.model(product).profile.kind != "cpu":
            continue
        found = _ROWS.match(graph, "product", product)
        shape = graph.result_shape(product)
        if (
            found is None
            or not shape
            or not ends_in_channels(found.nodes["bias"].proto)
            # oneDNN is not asked for these.
            or attr_of(product.proto, "transpose_a").b
        ):
            continue
        given = graph.result_shape(found.nodes["reshape"])
        if not given or not shape[-1] or shape[-1] != given[-1]:
            continue
        nodes, activation = _activated(graph, found.nodes["bias"])
        if graph.may_change(product, found.nodes["reshape"], *nodes):
            passes = [graph.pass_seconds(product, node.op, shape) for node in nodes]
            # All passes are saved but for the longest that activates.
            spent = max(passes[1:], default=0.0)
            seconds = graph.gain(product, sum(passes), spent)
            write = functools.partial(_write_rows, found, nodes, activation)
            yield Match(product, seconds, product, product.inputs[0], write)


def _activated(graph: PricedGraph, bias: Node) -> tuple[tuple[Node, ...], str]:
    """Return a bias with what activates it, and how the kernel names that; "" if none.

    GELU is known by what it computes.
    """
    view = graph.view
    # By node what it is for each of the samples.
    values: dict[int, Sequence[float]] = {bias.index: _SAMPLES}
    nodes = [bias]
    while len(nodes) < _MOST_NODES:
        readers = (view.nodes[i] for node in nodes for i in view.read_by(node.index))
        following, computed = next(
            (
                (reader, computed)
                for reader in readers
                if reader.index not in values
                and is_float32(reader)
                and reader.place == bias.place
                and not reader.controls
                and not view.control_readers(reader.index)
                and (
                    (computed := _computed(graph, reader, values))
                    or reader.op in _ACTIVATIONS
                )
            ),
            (None, ()),
        )
        if following is None:
            break
        nodes.append(following)
        values[following.index] = computed
        # Of the nodes, those that others read.
        read = [n for n in nodes if not values.keys() >= set(view.read_by(n.index))]
        if not computed or not graph.onednn:
            is_activated = read == [following] and len(nodes) == 2 and not computed
            return (tuple(nodes), following.op) if is_activated else ((bias,), "")
        for name, expected in _GELUS.items():
            if read == [following] and np.allclose(computed, expected, atol=1e-5):
                return tuple(nodes), name
    return (bias,), ""


def _computed(
    graph: PricedGraph, node: Node, values: Mapping[int, Sequence[float]]
) -> Sequence[float]:
    """Return what a node makes of the samples and of scalars; nothing if not known."""
    operands: list[Sequence[float]] = []
    for port in node.inputs:
        scalar = scalar_of(graph.view, port)
        if port.node in values:
            operands.append(values[port.node])
        elif scalar is not None and graph.shape(port) == ():
            operands.append([scalar] * len(_SAMPLES))
    if node.op not in _OPERATIONS or len(operands) != len(node.inputs):
        return ()
    try:
        return [*map(_OPERATIONS[node.op], *operands)]
    except (ValueError, OverflowError):
        return ()


def _write_rows(
    found: Found, nodes: tuple[Node, ...], activation: str, new: NewNodes
) -> None:
    """Put one kernel in for all; what nothing reads any more takes no time."""
    product, reshape = found.nodes["product"], found.nodes["reshape"]
    operands = (new.text(found.ports[name]) for name in ("x", "weights", "vector"))
    made = part_of(product, "_FusedMatMul", *operands)
    fused_ops = filter(None, ("BiasAdd", activation))
    made.attr["fused_ops"].list.s.extend(each.encode() for each in fused_ops)
    made.attr["num_args"].i = 1
    if activation == "LeakyRelu":
        made.attr["leakyrelu_alpha"].f = attr_of(nodes[-1].proto, "alpha").f
    new.replace(product, made)
    for node in nodes:
        new.pass_on(node, reshape.name)
