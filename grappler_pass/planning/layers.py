"""A plan's rows by node, and its nodes by layer, with what their gradients take.

Layers are the name scopes of a graph. Gradients are traced under the names of what they
are the gradients of, behind a prefix, and so belong to the same layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from grappler_pass.eligibility.exclusions import CALL_SCOPE, GRADIENT_SCOPE

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Decision

# Of functions that were inlined and of what was folded, then of gradients by tapes and
# by tf.gradients.
_PREFIX = re.compile(
    rf"(?:ConstantFolding/|{CALL_SCOPE})*(?P<gradients>{GRADIENT_SCOPE})?"
)


class PlannedNode(NamedTuple):
    """All rows of a plan for one node.

    Attributes:
      prefix: of its name, that says nothing of the model.
      layer: the scopes of its layer, outermost first.
      label: the rest of its name.
      main: the row that stands for it: that of a slot that moves to 16 bits, if any.
      seconds_float32: predicted seconds per step in float32.
      cast_seconds: predicted seconds of the casts in front of it.
      seconds: predicted seconds per step under the plan, with these casts.
    """

    prefix: str
    layer: tuple[str, ...]
    label: str
    main: Decision
    seconds_float32: float
    cast_seconds: float
    seconds: float

    @property
    def name(self) -> str:
        """Return its name in the graph."""
        return self.prefix + "/".join((*self.layer, self.label))


class LayerTimes(NamedTuple):
    """What one layer takes, forward and backward.

    Attributes:
      name: its name scope; "" for what is in none.
      nodes: how many nodes it has.
      low_nodes: how many of them compute in 16 bits.
      seconds_float32: predicted seconds per step in float32.
      seconds: predicted seconds per step under the plan, casts included.
      low_seconds: of `seconds` those of nodes in 16 bits.
    """

    name: str
    nodes: int
    low_nodes: int
    seconds_float32: float
    seconds: float
    low_seconds: float


def planned_nodes(decisions: Iterable[Decision]) -> tuple[PlannedNode, ...]:
    """Return the nodes of a plan, in its order."""
    rows: dict[str, list[Decision]] = {}
    for decision in decisions:
        rows.setdefault(decision.slot.node, []).append(decision)
    scopes = _forward_scopes(rows)
    return tuple(_node(name, own, scopes) for name, own in rows.items())


def times_by_layer(decisions: Iterable[Decision]) -> tuple[LayerTimes, ...]:
    """Return what each layer takes, the slowest in float32 first."""
    layers: dict[str, list[PlannedNode]] = {}
    for node in planned_nodes(decisions):
        layers.setdefault("/".join(node.layer), []).append(node)
    found = (
        LayerTimes(
            name,
            nodes=len(nodes),
            low_nodes=sum(node.main.is_low for node in nodes),
            seconds_float32=sum(node.seconds_float32 for node in nodes),
            seconds=sum(node.seconds for node in nodes),
            low_seconds=sum(node.seconds for node in nodes if node.main.is_low),
        )
        for name, nodes in layers.items()
    )
    return tuple(sorted(found, key=lambda layer: -layer.seconds_float32))


def _forward_scopes(names: Iterable[str]) -> set[str]:
    """Return the scopes that hold more than gradients, without their prefix."""
    scopes: set[str] = set()
    for name in names:
        _, is_gradient, rest = _split(name)
        while not is_gradient and "/" in rest:
            rest = rest.rpartition("/")[0]
            if rest in scopes:
                break
            scopes.add(rest)
    return scopes


def _node(name: str, rows: list[Decision], scopes: set[str]) -> PlannedNode:
    prefix, is_gradient, rest = _split(name)
    scope, _, label = rest.rpartition("/")
    # A gradient's scope ends with the name of what it is the gradient of.
    while is_gradient and scope and scope not in scopes:
        scope, _, last = scope.rpartition("/")
        label = f"{last}/{label}"
    # A node is priced once, in the row of its first slot.
    priced = rows[0]
    main = next((row for row in rows if row.is_low), priced)
    is_faster = main.is_low and priced.seconds_low is not None
    own = priced.seconds_low if is_faster else priced.seconds_float32
    return PlannedNode(
        prefix=prefix,
        layer=tuple(scope.split("/")) if scope else (),
        label=label,
        main=main,
        seconds_float32=priced.seconds_float32,
        cast_seconds=priced.cast_seconds,
        seconds=(own or 0.0) + priced.cast_seconds,
    )


def _split(name: str) -> tuple[str, bool, str]:
    """Return the prefix of a name, whether it is of gradients, and the rest."""
    prefix = _PREFIX.match(name)
    assert prefix
    return prefix[0], bool(prefix["gradients"]), name[prefix.end() :]
