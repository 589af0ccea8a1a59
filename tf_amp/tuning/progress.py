"""Who is told how measuring gets on; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grappler_pass.costs.price_list import Measured


@dataclass(frozen=True)
class Measuring:
    """How far the prices of one graph are measured.

    Attributes:
      done: ops, of `total`.
      total: ops to measure.
      op: the one just measured; "" at the start.
      rows: its prices.
      is_over: whether no more will be measured for this graph.
    """

    done: int
    total: int
    op: str = ""
    rows: tuple[Measured, ...] = ()
    is_over: bool = False


Listener = Callable[[Measuring], None]

_listeners: list[Listener] = []


def report_to(listener: Listener) -> None:
    """Tell `listener` of all that is measured from now on, in the measuring thread."""
    _listeners.append(listener)


def tell(state: Measuring) -> None:
    """Tell every listener."""
    for listener in _listeners:
        listener(state)
