"""Another type, or other op lists: which of them would let a node go low.

A change is tried on the graph before it is reported, by the rules that the pass
itself keeps to. What it would gain is not looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from grappler_pass.eligibility.propagation import constrain
from grappler_pass.graph.view import Node
from grappler_pass.planning.draft import Draft
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.list_edits import PREFIX, ListEdit
from tf_amp.tools.target_device import Target

Edits = tuple[ListEdit, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Alternatives:
    """What might be asked for instead of a draft that was planned for a target."""

    draft: Draft
    target: Target
    config: AmpConfig
    _known: dict[tuple[str, Edits], tuple[bool, ...]] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    def is_free_in(self, low_dtype: str, node: Node) -> bool:
        """Return whether a node could go low if the plan were for another type."""
        return self._is_free(node, low_dtype, self.config.list_edits)

    def freeing_edit(self, op: str, node: Node) -> str:
        """Return how to edit the lists of an op to free a node; empty: in no way."""
        for text, edits in _changes(self.config.list_edits, op):
            if self._is_free(node, self.target.low_dtype, edits):
                return text
        return ""

    def _is_free(self, node: Node, low_dtype: str, edits: Edits) -> bool:
        if (low_dtype, edits) not in self._known:
            self._known[low_dtype, edits] = self._eligible(low_dtype, edits)
        eligible = self._known[low_dtype, edits]
        return any(eligible[slot] for slot in self.draft.slots.slots_of[node.index])

    def _eligible(self, low_dtype: str, edits: Edits) -> tuple[bool, ...]:
        """Return for each slot whether it could go low."""
        target = dataclasses.replace(self.target, low_dtype=low_dtype)
        config = dataclasses.replace(self.config, list_edits=edits)
        chosen = target.settings(config)
        view, shapes = self.draft.view, self.draft.shapes
        return constrain(
            view,
            shapes,
            chosen.lists,
            low_dtype,
            uses_lists=chosen.uses_lists,
            exclude=chosen.exclude,
            ranges=chosen.ranges,
        ).eligible


def _changes(edits: Edits, op: str) -> Iterator[tuple[str, Edits]]:
    """Yield what may free an op, in words and as edits, the smallest change first."""
    origins = dict.fromkeys(e.origin.removeprefix(PREFIX) for e in edits if op in e.ops)
    without = tuple(_without(edit, op) for edit in edits)
    undo = f"take {op} out of {' and '.join(origins)}"
    clear = f"CLEARLIST_ADD={op}"
    if origins:
        yield undo, without
    text = f"{undo}, and {clear}" if origins else clear
    yield text, (*without, ListEdit("add", "clear", (op,)))


def _without(edit: ListEdit, op: str) -> ListEdit:
    return dataclasses.replace(edit, ops=tuple(each for each in edit.ops if each != op))
