"""The user's opt-outs, which hold for the gradients of the same operations too.

Who traces a graph may mark its nodes: `FLOAT32` keeps one in float32, `FORWARD` names
the operations that one is a gradient of. Without marks there are the names that
TensorFlow gives gradients, after what they are gradients of:

  v1     gradients/head/MatMul_grad/MatMul_1        (name and suffix)
  v2     gradient_tape/head/MatMul/MatMul_1         (the name scope, no more)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from grappler_pass.annotations import FLOAT32, FORWARD

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Patterns of scopes, of gradients and of functions that were inlined.
GRADIENT_SCOPE = r"(?:gradient_tape|gradients(?:_\d+)?)/"
CALL_SCOPE = r"(?:Stateful)?PartitionedCall(?:_\d+)?/"
_GRADIENT_SCOPE = re.compile(rf"(?:^|/){GRADIENT_SCOPE}")
_GRADIENT_SUFFIX = re.compile(r"_grad(?:_\d+)?(?=/)")
# Of a loop or a branch: while/body/_1/, cond/then/_20/.
_BODY_SCOPE = re.compile(r"^.*/(?:body|cond|then|else|branch\d+)/_\d+/")
_CALL_SCOPES = re.compile(f"(?:{CALL_SCOPE})+")


def excludes(
    patterns: Sequence[str], known: Mapping[str, str] | None = None
) -> Callable[[NodeDef], str]:
    """Return a function from a node to what excludes it, or the empty text.

    Args:
      patterns: as for `finder`.
      known: nodes that are excluded whatever their name, and by what.
    """
    find = finder(patterns)
    excluded = known or {}

    def excluded_by(node: NodeDef) -> str:
        if node.name in excluded:
            return excluded[node.name]
        if FLOAT32 in node.attr:
            return str(node.attr[FLOAT32].s, "utf-8")
        names = [node.name] if patterns else []
        if patterns and FORWARD in node.attr:
            names.extend(name.decode() for name in node.attr[FORWARD].list.s)
        return next(filter(None, map(find, names)), "")

    return excluded_by


def finder(patterns: Sequence[str]) -> Callable[[str], str]:
    """Return a function from a node's name to the pattern that finds it, or empty.

    Args:
      patterns: regular expressions, searched for anywhere in the name; `^` also
        matches behind the scope of an inlined call, `$` also at the end of the name
        of the op that a gradient belongs to.
    """
    compiled = [re.compile(pattern) for pattern in patterns]

    def found_by(name: str) -> str:
        for text in _names_of(name) if compiled else ():
            for pattern in compiled:
                if pattern.search(text):
                    return pattern.pattern
        return ""

    return found_by


def unmatched(patterns: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Return the patterns, as for `finder`, that find none of the names."""
    return tuple(p for p in patterns if not any(map(finder([p]), names)))


def local_names(name: str) -> tuple[str, ...]:
    """Return a name, and those that it had in functions before they were inlined."""
    plain = without_call_scopes(name)
    return tuple(dict.fromkeys((name, plain, _BODY_SCOPE.sub("", plain))))


def without_call_scopes(name: str) -> str:
    """Return a node's name as it was before its function was inlined."""
    return _CALL_SCOPES.sub("", name)


def differentiated(name: str) -> str:
    """Return the name that the operation of a gradient has; empty of other nodes."""
    inner = _behind_gradient_scope(without_call_scopes(name))
    return _GRADIENT_SUFFIX.sub("", inner).rpartition("/")[0]


def _behind_gradient_scope(plain: str) -> str:
    """Return the name behind the last scope of gradients; empty without one."""
    scopes = list(_GRADIENT_SCOPE.finditer(plain))
    return plain[scopes[-1].end() :] if scopes else ""


def _names_of(name: str) -> Iterator[str]:
    """Yield the name, and for a gradient those that its op may have had."""
    yield name
    plain = without_call_scopes(name)
    if plain != name:
        yield plain
    inner = _behind_gradient_scope(plain)
    if not inner:
        return
    whole = _GRADIENT_SCOPE.sub("/", plain).lstrip("/")
    for text in dict.fromkeys((inner, whole)):
        forward = _GRADIENT_SUFFIX.sub("", text)
        parts = forward.split("/")
        for count in range(len(parts), 0, -1):
            yield "/".join(parts[:count])
