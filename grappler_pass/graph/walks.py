"""Walks over whatever leads to other things; TensorFlow need not be imported."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tensorflow.core.framework.attr_value_pb2 import NameAttrList
    from tensorflow.core.framework.node_def_pb2 import NodeDef

T = TypeVar("T")


def function_attrs(node: NodeDef) -> Iterator[NameAttrList]:
    """Yield what refers to functions in a node's attributes."""
    for value in node.attr.values():
        yield from [value.func] if value.HasField("func") else value.list.func


def reached(
    starts: Iterable[T],
    following: Callable[[T], Iterable[T]],
    key: Callable[[T], Any] | None = None,
) -> Iterator[T]:
    """Yield some things and all that is reached from them, nearest first, each once.

    Args:
      starts: yielded themselves.
      following: returns what one of them leads to, once it has been yielded.
      key: returns what identifies one of them; None: they can be hashed.
    """
    waiting: deque[T] = deque()
    seen = set()
    things = starts
    while True:
        for thing in things:
            mark = thing if key is None else key(thing)
            if mark not in seen:
                seen.add(mark)
                waiting.append(thing)
        if not waiting:
            return
        thing = waiting.popleft()
        yield thing
        things = following(thing)
