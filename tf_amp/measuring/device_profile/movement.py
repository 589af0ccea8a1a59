"""Data movement and pooling."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_amp.measuring.device_profile.cases import Case, Point, Shapes, Sizes, matrix_of


def moves(sizes: Sizes) -> list[Case]:
    """Measure what copies values from place to place."""
    axes = {"elements": sizes.elements[1:]}
    raw = tf.raw_ops

    def matrix(point: Point) -> Shapes:
        return (matrix_of(point),)

    def halves(point: Point) -> Shapes:
        rows, columns = matrix_of(point)
        return ((rows, columns // 2),) * 2

    def transpose(value: Any, point: Point) -> Any:
        return raw.Transpose(x=value, perm=[0, 2, 1, 3])

    return [
        Case("Transpose", {"elements": axes["elements"][1:]}, _heads, transpose),
        Case(
            "ConcatV2",
            axes,
            halves,
            lambda left, right, point: raw.ConcatV2(values=[left, right], axis=1),
        ),
        Case(
            "Slice",
            axes,
            lambda point: ((matrix_of(point)[0], 2 * matrix_of(point)[1]),),
            lambda value, point: raw.Slice(
                input=value, begin=[0, 0], size=matrix_of(point)
            ),
        ),
        Case(
            "Pad",
            axes,
            halves,
            lambda value, other, point: raw.Pad(
                input=value, paddings=[[0, 0], [0, matrix_of(point)[1] // 2]]
            ),
        ),
        Case(
            "Tile",
            axes,
            lambda point: ((1, matrix_of(point)[1]),),
            lambda value, point: raw.BroadcastTo(input=value, shape=matrix_of(point)),
        ),
        Case(
            "ReverseV2",
            axes,
            matrix,
            lambda value, point: raw.ReverseV2(tensor=value, axis=[1]),
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

    raw = tf.raw_ops
    return [
        Case(
            "pool.MaxPool",
            axes,
            lambda point: (large(point),),
            lambda value, point: raw.MaxPool(input=value, **keep(point)),
        ),
        Case(
            "pool.AvgPool",
            axes,
            lambda point: (large(point),),
            lambda value, point: raw.AvgPool(value=value, **keep(point)),
        ),
        Case(
            "pool.MaxPoolGrad",
            axes,
            lambda point: (large(point), small(point), small(point)),
            lambda image, pooled, above, point: raw.MaxPoolGrad(
                orig_input=image, orig_output=pooled, grad=above, **keep(point)
            ),
        ),
        Case(
            "pool.AvgPoolGrad",
            axes,
            lambda point: (small(point),),
            lambda above, point: raw.AvgPoolGrad(
                orig_input_shape=large(point), grad=above, **keep(point)
            ),
        ),
    ]
