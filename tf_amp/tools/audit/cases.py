"""One node of a planned graph as an audit looks at it, and what keeps it in float32.

A change, to another type or other op lists, is tried on the graph before it is
reported, by the rules that the pass itself keeps to. What it would gain is not looked
at.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from grappler_pass import pipeline
from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.costs.calls import Product, Work
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.roofline import Roofline
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import dtype_name
from grappler_pass.graph.view import Node, Port
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.plan import Decision
from grappler_pass.planning.prices import op_call_of
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.setting_values import LIST_PREFIX, ListEdit
from tf_amp.tools.target_device import Target

Edits = tuple[ListEdit, ...]


class Alternatives:
    """What might be asked for instead of a draft that was planned for a target."""

    def __init__(
        self,
        draft: Draft,
        target: Target,
        config: AmpConfig,
        *,
        name: str = "",
        runs: float = 1.0,
    ) -> None:
        """Try nothing yet.

        Args:
          draft: planned for the target.
          target: the device.
          config: that the graph was traced under.
          name: of the function, to be put before those of its nodes.
          runs: how often it runs in each step.
        """
        self.draft, self.target, self._edits = draft, target, config.list_edits
        self.name, self.runs = name, runs
        eligible = functools.partial(_eligible, draft, target, config)
        self._eligible = functools.cache(eligible)

    def is_free_in(self, low_dtype: str, node: Node) -> bool:
        """Return whether a node could be in 16 bits if these were of another type."""
        return self._is_free(node, low_dtype, self._edits)

    def freeing_edit(self, op: str, node: Node) -> str:
        """Return how to edit the lists of an op to free a node; empty: in no way."""
        for text, edits in _changes(self._edits, op):
            if self._is_free(node, self.target.low_dtype, edits):
                return text
        return ""

    def _is_free(self, node: Node, low_dtype: str, edits: Edits) -> bool:
        eligible = self._eligible(low_dtype, edits)
        return any(eligible[slot] for slot in self.draft.slots.slots_of[node.index])


def _eligible(
    draft: Draft, target: Target, config: AmpConfig, low_dtype: str, edits: Edits
) -> tuple[bool, ...]:
    """Return for each slot whether it could be in 16 bits."""
    edited = dataclasses.replace(config, list_edits=edits)
    other = dataclasses.replace(target, low_dtype=low_dtype)
    chosen = other.settings(edited, is_compiled=draft.settings.fuses)
    tried = pipeline.constrained(dataclasses.replace(draft, settings=chosen))
    return tried.constraints.eligible


def _changes(edits: Edits, op: str) -> Iterator[tuple[str, Edits]]:
    """Yield what may free an op, in words and as edits, the smallest change first."""
    askers = dict.fromkeys(
        e.asked_by.removeprefix(LIST_PREFIX) for e in edits if op in e.ops
    )
    without = tuple(
        dataclasses.replace(edit, ops=tuple(each for each in edit.ops if each != op))
        for edit in edits
    )
    undo = f"take {op} out of {' and '.join(askers)}"
    clear = f"CLEARLIST_ADD={op}"
    if askers:
        yield undo, without
    text = f"{undo}, and {clear}" if askers else clear
    yield text, (*without, ListEdit("add", "clear", (op,)))


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedNode:
    """One priced node of a planned graph, on a device, beside what might be asked for.

    Attributes:
      decision: of the node's first slot, which carries its price.
      is_low: whether any slot of the node is in 16 bits.
    """

    draft: Draft
    node: Node
    decision: Decision
    is_low: bool
    roofline: Roofline
    alternatives: Alternatives

    @property
    def name(self) -> str:
        """Its name, behind that of the function that it is in."""
        function = self.alternatives.name
        return f"{function}/{self.node.name}" if function else self.node.name

    @property
    def low_dtype(self) -> str:
        """The 16-bit type of the plan."""
        return self.draft.settings.low_dtype

    @property
    def cause(self) -> str:
        """The name of the reason's cause."""
        return self.decision.reason.cause.name

    @property
    def seconds(self) -> float:
        """What the node takes in the planned step, its casts included."""
        row = self.decision
        low = row.seconds_low if self.is_low else None
        return (row.seconds_float32 if low is None else low) + row.cast_seconds

    @property
    def best_seconds(self) -> float:
        """What it would take if 16 bits gave all they can."""
        product = self.product
        if product is None:
            return self.decision.seconds_float32 / 2
        rates = self.roofline.matrix_flops
        flops = 2.0 * product.batch * product.m * product.n * product.k
        peak = max(rates.get(self.low_dtype, 0.0), rates["float32"])
        best = self.weight * flops / peak
        return min(best, self.decision.seconds_float32)

    @property
    def memory_seconds(self) -> float:
        """What it takes to move its operands and results in 16 bits, at least."""
        rates = self.roofline.bytes_per_second
        moved = sum(work.bytes_moved for work in self.works)
        return self.weight * moved / (rates.get(self.low_dtype) or rates["float32"])

    @cached_attribute
    def call(self) -> OpCall:
        """The node as pricing sees it."""
        draft = self.draft

        def spec(port: Port) -> TensorSpec:
            shape = known_shape(draft.shapes, draft.view, port)
            enum = draft.slots.output_dtype(port.node, port.output)
            return TensorSpec(shape, dtype_name(enum, "float32"))

        return op_call_of(self.node, draft.slots, spec)

    @cached_attribute
    def works(self) -> tuple[Work, ...]:
        """What the node has to do in 16 bits."""
        return works_of(self.call, self.low_dtype)

    @property
    def product(self) -> Product | None:
        """The matrix product that the node is, if it is one."""
        return next((work.product for work in self.works if work.product), None)

    @property
    def weight(self) -> float:
        """How often a step runs the node."""
        return float(self.alternatives.runs * self.draft.view.weight(self.node.index))

    @property
    def listed_op(self) -> str:
        """The op whose list the node is on: of a fused node it may be a part."""
        return self.draft.settings.lists.place_of(self.node.proto).op

    def float32_neighbors(self) -> Iterator[Decision]:
        """Yield the rows of the nodes beside this one that stay float32."""
        view, slots = self.draft.view, self.draft.slots
        beside = [port.node for port in self.node.inputs]
        for port in view.output_ports(self.node.index):
            beside += [reader.node for reader in view.readers(port)]
        for index in dict.fromkeys(beside):
            rows = [self.draft.plan.decisions[s] for s in slots.slots_of[index]]
            if rows and not any(row.is_low for row in rows):
                yield rows[0]
