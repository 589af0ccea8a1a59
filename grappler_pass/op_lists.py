"""The four op lists for one low dtype, and a user's changes to them.

`op_table` says which op is on which list and why; here the lists are made, kept
disjoint, and edited. What the lists mean for a graph is decided in `propagation`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from grappler_pass.op_table import LIST_NAMES, OP_TABLE

Edits = Mapping[str, Iterable[str]]
_BY_USER = "put there by the user"


class OpListError(ValueError):
    """An op is in two lists, is unknown, or a list's name is wrong."""


@dataclasses.dataclass(frozen=True, eq=False)
class OpLists:
    """Which list an op is on, for one low dtype.

    Attributes:
      low_dtype: "bfloat16" or "float16".
      lists: list name ("allow", "infer", "deny", "clear") to its ops; disjoint.
      reasons: op to why it is there.
      gradient_reductions: ops whose result is a gradient made by the backward pass.
    """

    low_dtype: str
    lists: Mapping[str, frozenset[str]]
    reasons: Mapping[str, str]
    gradient_reductions: frozenset[str]
    _list_of: Mapping[str, str] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Index the lists.

        Raises:
          OpListError: an op is in two lists.
        """
        list_of: dict[str, str] = {}
        for name in LIST_NAMES:
            for op in sorted(self.lists[name]):
                if op in list_of:
                    raise OpListError(_two_lists(op, list_of[op], name))
                list_of[op] = name
        object.__setattr__(self, "_list_of", list_of)

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
        placed = [(row, getattr(row, low_dtype)) for row in OP_TABLE]
        return cls(
            low_dtype=low_dtype,
            lists={
                name: frozenset(row.op for row, place in placed if place == name)
                for name in LIST_NAMES
            },
            reasons={row.op: row.reason for row in OP_TABLE},
            gradient_reductions=frozenset(
                row.op for row in OP_TABLE if row.reduces_gradients
            ),
        )

    def list_of(self, op: str) -> str | None:
        """Return "allow", "infer", "deny" or "clear"; None for an op in no list."""
        return self._list_of.get(op)

    def reason_of(self, op: str) -> str:
        """Return why `op` is on its list; empty for an op in no list."""
        return self.reasons.get(op, "") if op in self._list_of else ""

    def reduces_gradients(self, op: str) -> bool:
        """Tell whether `op` ends the walk back from a variable's update."""
        return op in self.gradient_reductions

    def edited(
        self,
        *,
        add: Edits | None = None,
        remove: Edits | None = None,
        known_ops: Callable[[str], bool] | None = None,
    ) -> OpLists:
        """Return the lists with a user's additions and removals.

        To move an op, remove it from its list and add it to another; removing what is
        not on a list changes nothing, as in TensorFlow.

        Args:
          add: list name to ops.
          remove: list name to ops.
          known_ops: tells whether TensorFlow has an op of this name; None to accept
            every name.

        Raises:
          OpListError: an op that `known_ops` denies, an op that would be in two lists,
            or a list of another name.
        """
        added = _checked(add or {}, known_ops)
        removed = _checked(remove or {}, known_ops)
        lists = {
            name: (ops | added.get(name, frozenset())) - removed.get(name, frozenset())
            for name, ops in self.lists.items()
        }
        moved = {
            op: _BY_USER
            for name, ops in added.items()
            for op in ops
            if self.list_of(op) != name
        }
        return dataclasses.replace(self, lists=lists, reasons={**self.reasons, **moved})

    def __eq__(self, other: object) -> bool:
        """Compare dtype and lists."""
        return (
            isinstance(other, OpLists)
            and self.low_dtype == other.low_dtype
            and self.lists == other.lists
        )

    def __hash__(self) -> int:
        """Hash dtype and lists."""
        return hash((self.low_dtype, *(self.lists[name] for name in LIST_NAMES)))


def _two_lists(op: str, first: str, second: str) -> str:
    return (
        f"op {op!r} is in two lists, {first!r} and {second!r}; "
        f"remove it from one of them"
    )


def _checked(
    edits: Edits, known_ops: Callable[[str], bool] | None
) -> dict[str, frozenset[str]]:
    """Return the edits as sets, every name in them checked."""
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
        for op in sorted(checked[name]):
            if known_ops is not None and not known_ops(op):
                raise OpListError(
                    f"op {op!r} (for list {name!r}) is not an op of this TensorFlow; "
                    f"check its spelling"
                )
    return checked
