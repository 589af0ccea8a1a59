"""Data movement and pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp.measuring.device_profile.cases import (
    Build,
    Case,
    Point,
    Shapes,
    Sizes,
    matrix_of,
    raw_op,
)


def moves(sizes: Sizes) -> list[Case]:
    """Measure what copies values from place to place."""
    axes = {"elements": sizes.elements[1:]}

    def halves(point: Point) -> Shapes:
        rows, columns = matrix_of(point)
        return ((rows, columns // 2),) * 2

    def padding(point: Point) -> dict[str, Any]:
        return {"paddings": [[0, 0], [0, matrix_of(point)[1] // 2]]}

    return [
        Case(
            "Transpose",
            {"elements": sizes.elements[2:]},
            _heads,
            raw_op("Transpose", perm=[0, 2, 1, 3]),
        ),
        Case(
            "ConcatV2",
            axes,
            halves,
            lambda *values, point: tf.raw_ops.ConcatV2(values=values, axis=1),
        ),
        Case(
            "Slice",
            axes,
            lambda point: ((matrix_of(point)[0], 2 * matrix_of(point)[1]),),
            raw_op("Slice", lambda point: {"size": matrix_of(point)}, begin=[0, 0]),
        ),
        Case("Pad", axes, halves, raw_op("Pad", padding)),
        Case(
            "Tile",
            axes,
            lambda point: ((1, matrix_of(point)[1]),),
            raw_op("BroadcastTo", lambda point: {"shape": matrix_of(point)}),
        ),
        Case(
            "ReverseV2",
            axes,
            lambda point: (matrix_of(point),),
            raw_op("ReverseV2", axis=[1]),
        ),
    ]


def _heads(point: Point) -> Shapes:
    """Split elements into [batch, positions, 8 heads, 32 features]."""
    positions = min(point[0] >> 8, 64)
    return ((point[0] // (positions * 256), positions, 8, 32),)


def pools(sizes: Sizes) -> list[Case]:
    """Measure pooling and its gradients, by elements of the smaller tensor."""
    axes = {"elements": sizes.elements[1:-2], "window": (4, 9, 49)}

    def small(point: Point) -> tuple[int, ...]:
        edge = 4 if point[0] < 1 << 14 else 16
        channels = 64
        return (point[0] // (edge * edge * channels), edge, edge, channels)

    def large(point: Point) -> tuple[int, ...]:
        batch, edge, _, channels = small(point)
        return (batch, 2 * edge, 2 * edge, channels)

    def keep(point: Point) -> dict[str, Any]:
        side = round(point[1] ** 0.5)
        return {
            "ksize": [1, side, side, 1],
            "strides": [1, 2, 2, 1],
            "padding": "SAME",
        }

    def case(op: str, shapes: Callable[[Point], Shapes], build: Build) -> Case:
        return Case(f"pool.{op}", axes, shapes, build)

    return [
        case("MaxPool", lambda point: (large(point),), raw_op("MaxPool", keep)),
        case("AvgPool", lambda point: (large(point),), raw_op("AvgPool", keep)),
        case(
            "MaxPoolGrad",
            lambda point: (large(point), small(point), small(point)),
            raw_op("MaxPoolGrad", keep),
        ),
        case(
            "AvgPoolGrad",
            lambda point: (small(point),),
            raw_op(
                "AvgPoolGrad",
                lambda point: {"orig_input_shape": large(point), **keep(point)},
            ),
        ),
    ]
