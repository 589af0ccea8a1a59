"""Where a level forces 16 bits: on which side of data movement the casts are.

    exp(f32) --> slice(low) --> matmul(low)     casts all that the slice reads
    exp(f32) --> slice(f32) --> matmul(low)     casts what is left of it

Values are rounded and moved in either order, so that results are the same. What
computes is low in any case: the level does not ask what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from grappler_pass.costs.work.op_classes import GATHER, MOVEMENT
from grappler_pass.graph.op_table import VIEW_OPS
from grappler_pass.planning.assignment import FLOAT32_SIDE, Problem, minimum_cut
from grappler_pass.planning.cut_problem import Variables, variables_of_nodes
from grappler_pass.planning.draft import Draft

# Lists of tensors are no part of it: what is kept in them for the backward pass takes
# half the memory in 16 bits.
_MOVING = VIEW_OPS | GATHER | {op for op in MOVEMENT if not op.startswith("Tensor")}


def forced_colors(
    draft: Draft, variables: Variables, problem: Problem
) -> tuple[bool, ...]:
    """Return for every variable whether it is low: all but what makes casts smaller.

    The cheapest assignment in which whatever computes is low. Data movement counts as
    no slower in 16 bits than in float32, so that it is low unless that saves on casts.

    Args:
      draft: a priced draft.
      variables: of its slots.
      problem: its assignment problem.
    """
    computing = set(_computing(draft, variables))
    if len(computing) == variables.count:
        return (True,) * variables.count
    float32 = [math.inf if v in computing else 0.0 for v in range(variables.count)]
    prices = draft.prices
    for node, variable in variables_of_nodes(draft.slots, variables, prices).items():
        low = prices.low[node]
        assert low is not None, "a node that may go low has a price for it"
        float32[variable] += max(0.0, prices.float32[node] - low)
    movement = Problem(float32, [0.0] * variables.count, problem.casts)
    return minimum_cut(movement, low_at_ties=True)


def _computing(draft: Draft, variables: Variables) -> Iterator[int]:
    """Yield the variables with a slot whose node does more than to move data."""
    for slot, variable in enumerate(variables.of_slot):
        node = draft.view.nodes[draft.slots.node_of[slot]]
        if variable != FLOAT32_SIDE and node.op not in _MOVING:
            yield variable
