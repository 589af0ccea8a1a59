"""The user's opt-outs by name, which hold for the gradients of the same ops too.

TensorFlow names gradients after what they are gradients of:

  v1     gradients/head/MatMul_grad/MatMul_1        (scope and suffix)
  v2     gradient_tape/head/MatMul/MatMul_1         (scope)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

_GRADIENT_SCOPE = re.compile(r"(?:^|/)(?:gradient_tape|gradients(?:_\d+)?)/")
_GRADIENT_SUFFIX = re.compile(r"_grad(?:_\d+)?(?=/)")
_CALL_SCOPE = re.compile(r"(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)+")


def excludes(patterns: Sequence[str]) -> Callable[[str], str]:
    """Return a function from a node's name to the pattern that excludes it, or empty.

    Args:
      patterns: regular expressions, searched for anywhere in the name; `^` also
        matches behind the scope of an inlined call, `$` also at the end of the name
        of the op that a gradient belongs to.
    """
    compiled = [re.compile(pattern) for pattern in patterns]

    def excluded_by(name: str) -> str:
        for text in _names_of(name) if compiled else ():
            for pattern in compiled:
                if pattern.search(text):
                    return pattern.pattern
        return ""

    return excluded_by


def _names_of(name: str) -> Iterator[str]:
    """Yield the name, and for a gradient those that its op may have had."""
    yield name
    plain = _CALL_SCOPE.sub("", name)
    if plain != name:
        yield plain
    scopes = list(_GRADIENT_SCOPE.finditer(plain))
    if not scopes:
        return
    inner = plain[scopes[-1].end() :]
    whole = _GRADIENT_SCOPE.sub("/", plain).lstrip("/")
    for text in dict.fromkeys((inner, whole)):
        forward = _GRADIENT_SUFFIX.sub("", text)
        parts = forward.split("/")
        for count in range(len(parts), 0, -1):
            yield "/".join(parts[:count])
