"""Changes to the op lists, from a mapping or from the variables TensorFlow knows.

The variables are those of TensorFlow's own pass, with their old names:
`TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{ALLOWLIST,INFERLIST,DENYLIST,CLEARLIST}_{ADD,
REMOVE}`, comma separated; ops given under an old and a new name add up, as there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from tf_amp.config.setting_values import refuse_unknown
from tf_amp.errors import ConfigError

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
LISTS = ("allow", "infer", "deny", "clear")
VERBS = ("add", "remove")

# What follows PREFIX in a variable, and the list it edits.
_LIST_OF_NAME = {
    "ALLOWLIST": "allow",
    "INFERLIST": "infer",
    "DENYLIST": "deny",
    "CLEARLIST": "clear",
    "WHITELIST": "allow",
    "GRAYLIST": "infer",
    "BLACKLIST": "deny",
}


@dataclasses.dataclass(frozen=True)
class ListEdit:
    """Ops added to, or removed from, one list; `asked_by` is where."""

    verb: str
    list_name: str
    ops: tuple[str, ...]
    asked_by: str = dataclasses.field(default="lists", compare=False)


def edits_from_env(given: Mapping[str, str]) -> tuple[ListEdit, ...]:
    """Return the edits that the variables ask for.

    Raises:
      ConfigError: a variable's name is unknown, or two of them contradict each other.
    """
    known = _variables()
    prefixed = (name for name in given if name.startswith(PREFIX))
    refuse_unknown((n for n in prefixed if n.endswith(("_ADD", "_REMOVE"))), [*known])
    edits = tuple(
        ListEdit(verb, list_name, _split(given[name]), name)
        for name, (verb, list_name) in known.items()
        if _split(given.get(name, ""))
    )
    return checked_edits(edits)


def edits_from_mapping(
    lists: Mapping[str, Mapping[str, Iterable[str]]],
) -> tuple[ListEdit, ...]:
    """Return the edits of `{"add": {"allow": ["MyOp"]}, "remove": {"infer": [...]}}`.

    Raises:
      ConfigError: a key is neither verb nor list, something is not of the type that it
        has above, or two edits contradict each other.
    """
    edits = []
    for verb, by_list in _items(lists, "lists", VERBS):
        asked_by = f"lists[{verb!r}]"
        for list_name, ops in _items(by_list, asked_by, LISTS):
            names = _names(ops, f"{asked_by}[{list_name!r}]")
            edits.append(ListEdit(verb, list_name, names, asked_by))
    return checked_edits(tuple(edits))


def env_from_edits(edits: Iterable[ListEdit]) -> dict[str, str]:
    """Return variables from which `edits_from_env` reads the same ops for each list."""
    names = {key: name for name, key in reversed(_variables().items())}
    ops: dict[str, list[str]] = {}
    for edit in edits:
        ops.setdefault(names[edit.verb, edit.list_name], []).extend(edit.ops)
    return {name: ",".join(dict.fromkeys(found)) for name, found in ops.items()}


def checked_edits(edits: tuple[ListEdit, ...]) -> tuple[ListEdit, ...]:
    """Return the edits, or raise ConfigError where one op is sent to two places."""
    destination: dict[str, ListEdit] = {}
    for edit in edits:
        for op in edit.ops if edit.verb == "add" else ():
            other = destination.setdefault(op, edit)
            if other.list_name != edit.list_name:
                raise ConfigError(
                    f"{other.asked_by} adds {op} to the {other.list_name} list and "
                    f"{edit.asked_by} to the {edit.list_name} list; an op is in one "
                    "list."
                )
    for edit in edits:
        for op in edit.ops if edit.verb == "remove" else ():
            added = destination.get(op)
            if added and added.list_name == edit.list_name:
                raise ConfigError(
                    f"{added.asked_by} adds {op} to the {edit.list_name} list and "
                    f"{edit.asked_by} removes it from there; keep one of them."
                )
    return edits


def _variables() -> dict[str, tuple[str, str]]:
    """Return each variable's name with the verb and the list it stands for."""
    return {
        f"{PREFIX}{name}_{verb.upper()}": (verb, list_name)
        for name, list_name in _LIST_OF_NAME.items()
        for verb in VERBS
    }


def _split(value: str) -> tuple[str, ...]:
    return tuple(op.strip() for op in value.split(",") if op.strip())


def _items(
    given: object, name: str, known: tuple[str, ...]
) -> Iterable[tuple[str, object]]:
    """Return the items of a mapping whose keys are all known, or raise ConfigError."""
    if not isinstance(given, Mapping):
        raise _refusal(name, given, f"mappings with the keys {', '.join(known)}")
    for key in given:
        if key not in known:
            raise _refusal(name, key, f"the keys {', '.join(known)}")
    return given.items()


def _names(ops: object, name: str) -> tuple[str, ...]:
    """Return the ops as a tuple, or raise ConfigError where they are no names."""
    if isinstance(ops, str):
        return (ops,)
    if not isinstance(ops, Iterable):
        raise _refusal(name, ops, "names of ops")
    names = tuple(ops)
    for op in names:
        if not isinstance(op, str):
            raise _refusal(name, op, "names of ops")
    return names


def _refusal(name: str, received: object, allowed: str) -> ConfigError:
    return ConfigError(
        f"{name}: received {received!r}; allowed are {allowed}, as in "
        'lists={"add": {"allow": ["MatMul"]}}.'
    )
