"""One op class to measure, its points, and how densely they lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import tensorflow as tf

from grappler_pass.graph.type_slots import op_def_of

Point = tuple[int, ...]
Shapes = tuple[tuple[int, ...], ...]
Build = Callable[..., Any]

# Elements that all tensors of one call may have together: 192 MiB in float32.
_MOST_ELEMENTS = 3 << 24
_MOST_FLOPS = 9e9


@dataclass(frozen=True)
class Case:
    """One class to measure.

    Args:
        op_class: the row of the profile that the seconds go to.
        axes: sizes along each axis of the class.
        shapes: shapes of the floating inputs at a point.
        build: makes the op from its inputs and the point, which is named.
        flops: of one call at a point, to leave out what would take too long.
        minus: the class that is subtracted point by point (a fused product's own).
        label: stands for a dtype in the profile; its part before ">" is the dtype of
            the inputs.
    """

    op_class: str
    axes: Mapping[str, Sequence[int]]
    shapes: Callable[[Point], Shapes]
    build: Build
    flops: Callable[[Point], float] = lambda point: 0.0
    minus: Build | None = None
    label: str | None = None

    def fits(self, point: Point) -> bool:
        """Return whether a call at ``point`` is small enough to be measured."""
        elements = sum(math.prod(shape) for shape in self.shapes(point))
        return elements <= _MOST_ELEMENTS and self.flops(point) <= _MOST_FLOPS


def raw_op(
    op: str,
    at: Callable[[Point], Mapping[str, Any]] = lambda point: {},
    /,
    **fixed: Any,
) -> Build:
    """Return what makes an op of tensors, which are its inputs in their order.

    Args:
        op: its name.
        at: further inputs and attributes by name, which depend on the point.
        **fixed: those that do not.
    """
    make, definition = getattr(tf.raw_ops, op), op_def_of(op)
    names = [arg.name for arg in definition.input_arg] if definition else []

    def build(*tensors: Any, point: Point) -> Any:
        named = {**fixed, **at(point)}
        free = (name for name in names if name not in named)
        made = make(**dict(zip(free, tensors, strict=False)), **named)
        return made[0] if isinstance(made, tuple) else made

    return build


def points_of(case: Case) -> list[Point]:
    """Return the points of ``case`` that are small enough to be measured."""
    return [point for point in product(*case.axes.values()) if case.fits(point)]


def matrix_of(point: Point) -> tuple[int, ...]:
    """Lay elements out as a matrix, as most activations are."""
    columns = min(256, max(point[0] // 8, 1))
    return (point[0] // columns, columns)


@dataclass(frozen=True)
class Sizes:
    """How densely the axes are laid out."""

    elements: tuple[int, ...]
    matrix: tuple[int, ...]
    batch: tuple[int, ...]
    batched_matrix: tuple[int, ...]
    pixels: tuple[int, ...]
    channels: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


COARSE = Sizes(
    elements=(1 << 10, 1 << 14, 1 << 17, 1 << 19, 1 << 21, 1 << 23),
    matrix=(8, 64, 256, 1024),
    batch=(4, 64),
    batched_matrix=(32, 128),
    pixels=(256, 4096, 65536),
    channels=(16, 64, 256),
    rows=(64, 1024, 16384),
    columns=(16, 128, 1024),
)
