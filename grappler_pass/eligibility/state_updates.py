"""Regions that stay float32: arithmetic of updates, what surrounds scaled gradients.

An optimizer's arithmetic is found by what it feeds, not by names: the walk back from
the values written to variables, up to the products of the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from grappler_pass.annotations import BARRIER, LOSS_SCALE
from grappler_pass.eligibility.reachability import UNREACHED, spread
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, SUMMING_GRADIENT_OPS
from grappler_pass.graph.op_traits import has_effects, is_update
from grappler_pass.graph.view import GraphView, Node


def state_update_region(view: GraphView, lists: OpLists) -> list[int]:
    """Return for every node the update whose arithmetic it is part of, or UNREACHED.

    A node belongs if every live reader is an update or belongs itself. The walk
    neither enters nor crosses allow ops and gradient reductions: otherwise the backward
    pass of a step that returns nothing would be optimizer arithmetic.
    """
    updating = _updating_inputs(view)
    if not updating:
        return [UNREACHED] * len(view.nodes)
    inputs = [[port.node for port in node.inputs] for node in view.nodes]
    untouchable = view.item.untouchable
    open_to_walk = [
        lists.place_of(node.proto).list_name != ALLOW
        and node.op not in SUMMING_GRADIENT_OPS
        and not is_update(node.op)
        and node.name not in untouchable
        for node in view.nodes
    ]
    walked = [updating.get(i, sources) for i, sources in enumerate(inputs)]
    region = spread(updating, walked, open_to_walk)
    for i in updating:
        if not is_update(view.nodes[i].op):
            region[i] = UNREACHED
            # Two inputs may come from one node, one of them for another use.
            inputs[i] = list((Counter(inputs[i]) - Counter(updating[i])).elements())
    _drop_nodes_read_outside(view, region, inputs)
    return region


def _updating_inputs(view: GraphView) -> dict[int, list[int]]:
    """Return for each update the nodes whose values it writes to variables.

    A call of a function is one if that is all the function does with some argument.
    """
    updating = {
        node.index: [port.node for port in node.inputs]
        for node in view.nodes
        if is_update(node.op)
    }
    for name, position in view.item.updates:
        node = view.nodes[view.index[name]]
        updating.setdefault(node.index, []).append(node.inputs[position].node)
    return updating


def _drop_nodes_read_outside(
    view: GraphView, region: list[int], inputs: list[list[int]]
) -> None:
    """Take out of `region`, in place, what a live node outside of it reads."""
    live = live_nodes(view)
    waiting = [i for i in live if region[i] == UNREACHED]
    while waiting:
        for source in inputs[waiting.pop()]:
            if region[source] not in (UNREACHED, source):
                region[source] = UNREACHED
                if source in live:
                    waiting.append(source)


def live_nodes(view: GraphView) -> frozenset[int]:
    """Return the nodes that a fetched, preserved or stateful node needs.

    Where nothing is fetched or preserved, what nobody reads counts as fetched.
    """
    stateful = (node.index for node in view.nodes if has_effects(node.op))
    return view.behind([*view.roots, *stateful])


def behind_barriers(view: GraphView) -> list[int]:
    """Return for every node the barrier that it is or that leads to it, or UNREACHED.

    The unscaling multiplication of gradients carries the mark; what comes after it is
    in true units and must not be rounded or overflow again.
    """
    barriers = [view.index[name] for name in view.item.barriers]
    return _behind(view, BARRIER, barriers, lambda node: True)


def behind_loss_scales(view: GraphView, lists: OpLists) -> list[int]:
    """Return for every node the read of a loss scale that leads to it, or UNREACHED.

    Gradients begin with the scale, which float16 may not hold, and become smaller as
    means are differentiated. The walk ends at products, before which they have.
    """

    def enters(node: Node) -> bool:
        return lists.place_of(node.proto).list_name != ALLOW

    return _behind(view, LOSS_SCALE, [], enters)


def _behind(
    view: GraphView, mark: str, also: list[int], enters: Callable[[Node], bool]
) -> list[int]:
    """Return what each node is reached from: a marked one, or one of some others."""
    # `in` first: reading a missing key of a protobuf map creates it.
    attrs = ((node.index, node.proto.attr) for node in view.nodes)
    starts = [*(i for i, attr in attrs if mark in attr and attr[mark].b), *also]
    if not starts:
        return [UNREACHED] * len(view.nodes)
    after: list[list[int]] = [[] for _ in view.nodes]
    for node in view.nodes:
        for port in node.inputs:
            after[port.node].append(node.index)
    return spread(starts, after, list(map(enters, view.nodes)))
