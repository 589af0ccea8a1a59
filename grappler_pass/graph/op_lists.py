"""The four op lists for one low dtype, and a user's changes to them.

`op_table` says which op is on which list and why; here the lists are made and edited.
No op is on two. What the lists mean for a graph is decided in `eligibility.rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.errors import AmpError
from grappler_pass.fork_safety import cached_attribute
from grappler_pass.graph.op_table import DENY, LIST_NAMES, OP_TABLE, ROOTS, ops_within

Edits = Mapping[str, Iterable[str]]
_BY_USER = "you have put it there"


class OpListError(AmpError, ValueError):
    """An op is in two lists, or a list's name is wrong."""


class Listing(NamedTuple):
    """A list's name, None for no list, why a node is there, and by which op."""

    list_name: str | None
    reason: str
    op: str


@dataclasses.dataclass(frozen=True)
class OpLists:
    """Which list an op is on, for one low dtype; compared by that alone.

    Attributes:
      low_dtype: "bfloat16" or "float16".
      places: op to the name of its list: "allow", "infer", "deny" or "clear".
      reasons: op to why it is there.
    """

    low_dtype: str
    places: Mapping[str, str]
    reasons: Mapping[str, str] = dataclasses.field(compare=False)

    @cached_attribute
    def moved(self) -> frozenset[str]:
        """The ops that are not on the list that they are on as shipped."""
        shipped = OpLists.for_dtype(self.low_dtype)
        ops = self.places.keys() | shipped.places.keys()
        return frozenset(o for o in ops if self.list_of(o) != shipped.list_of(o))

    @cached_attribute
    def freed(self) -> frozenset[str]:
        """The ops that a user has moved to a list of what may be in 16 bits."""
        return frozenset(o for o in self.moved if self.list_of(o) not in (DENY, None))

    @classmethod
    def for_dtype(cls, low_dtype: str) -> OpLists:
        """Return the lists as shipped for "bfloat16" or "float16".

        Raises:
          OpListError: another dtype.
        """
        if low_dtype not in ("bfloat16", "float16"):
            raise OpListError(
                f"op lists exist for 'bfloat16' and 'float16', not for {low_dtype!r}"
            )
        return cls(
            low_dtype,
            places={row.op: getattr(row, low_dtype) for row in OP_TABLE},
            reasons={row.op: row.why.text for row in OP_TABLE},
        )

    def list_of(self, op: str) -> str | None:
        """Return "allow", "infer", "deny" or "clear"; None for an op in no list."""
        return self.places.get(op)

    def reason_of(self, op: str) -> str:
        """Return why `op` is on its list; empty for an op in no list."""
        return self.reasons.get(op, "") if op in self.places else ""

    def place_of(self, node: NodeDef) -> Listing:
        """Return the list of a node's op, or of what the user moved of its parts.

        Before   matmul --> bias_add --> relu       BiasAdd on the deny list
        After    fused matmul                       as on the deny list

        What may hold an op that stays in float32 stays there as a whole. To any other
        list a fused node follows the product or normalization that it begins with.
        """
        op = node.op
        moved = self.moved and [each for each in ops_within(node) if each in self.moved]
        if moved:
            held = [(self.list_of(each), each) for each in (op, *moved)]
            strictest = [each for to in (DENY, None) for of, each in held if of == to]
            roots = [each for each in moved if each == ROOTS.get(op)]
            op = (*strictest, *roots, op)[0]
        reason = self.reason_of(op)
        if op != node.op:
            part = f"it counts as the {op} in it"
            reason = ", and ".join(filter(None, (part, reason)))
        return Listing(self.list_of(op), reason, op)

    def edited(
        self, *, add: Edits | None = None, remove: Edits | None = None
    ) -> OpLists:
        """Return the lists with a user's additions and removals.

        Both are ops by the name of a list. To move an op, remove it from its list and
        add it to another; removing what is not on a list changes nothing, as in
        TensorFlow.

        Raises:
          OpListError: an op would be in two lists, or there is no list of a name.
        """
        added, removed = _checked(add or {}), _checked(remove or {})
        places, reasons = dict(self.places), dict(self.reasons)
        for name, ops in removed.items():
            for op in ops:
                if places.get(op) == name:
                    del places[op]
        for name, ops in added.items():
            for op in sorted(ops - removed.get(name, frozenset())):
                both = {name, places.setdefault(op, name)}
                if len(both) > 1:
                    first, second = sorted(both, key=LIST_NAMES.index)
                    raise OpListError(
                        f"op {op!r} is in two lists, {first!r} and {second!r}; "
                        "remove it from one of them"
                    )
                if self.list_of(op) != name:
                    reasons[op] = _BY_USER
        return dataclasses.replace(self, places=places, reasons=reasons)

    def __hash__(self) -> int:
        """Hash dtype and lists."""
        return self._hash

    @cached_attribute
    def _hash(self) -> int:
        return hash((self.low_dtype, frozenset(self.places.items())))


def _checked(edits: Edits) -> dict[str, frozenset[str]]:
    """Return the edits as sets, the names of the lists checked."""
    checked: dict[str, frozenset[str]] = {}
    for name, ops in edits.items():
        if name not in LIST_NAMES:
            known = ", ".join(LIST_NAMES)
            raise OpListError(f"there is no op list {name!r}; the lists are {known}")
        if isinstance(ops, str):
            raise OpListError(
                f"ops of list {name!r} must be a collection of names, got {ops!r}; "
                f"write [{ops!r}]"
            )
        checked[name] = frozenset(ops)
    return checked
