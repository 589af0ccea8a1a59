"""Ops along rows and columns: softmax, normalization, look-ups, reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.work import op_classes
from grappler_pass.costs.work.piece import CACHED_BYTES
from tf_amp.measuring.device_profile.cases import (
    Build,
    Case,
    Point,
    Shapes,
    Sizes,
    raw_op,
)


def by_rows(sizes: Sizes) -> list[Case]:
    """Measure ops whose rows and columns count separately."""
    axes = {"rows": sizes.rows, "columns": sizes.columns}
    few = {"rows": sizes.rows, "columns": sizes.columns[1:]}

    def matrix(point: Point) -> Shapes:
        return (point,)

    def labels(point: Point) -> dict[str, Any]:
        return {"labels": tf.zeros(point[:1], tf.int32)}

    def table(point: Point) -> Shapes:
        return ((_table_rows(point), point[1]),)

    def indices(point: Point) -> dict[str, Any]:
        return {"indices": _scattered(point[0], _table_rows(point))}

    def segments(point: Point) -> dict[str, Any]:
        return {"segment_ids": _scattered(point[0], 1024)}

    return [
        Case("BiasAdd", few, lambda point: (point, point[1:]), raw_op("BiasAdd")),
        Case("BiasAddGrad", few, matrix, raw_op("BiasAddGrad")),
        Case("Softmax", axes, matrix, raw_op("Softmax")),
        Case("LogSoftmax", axes, matrix, raw_op("LogSoftmax")),
        Case(
            "cross_entropy",
            axes,
            matrix,
            raw_op("SparseSoftmaxCrossEntropyWithLogits", labels),
        ),
        Case("gather", axes, table, raw_op("GatherV2", indices, axis=0)),
        Case(
            "segment",
            axes,
            matrix,
            raw_op("UnsortedSegmentSum", segments, num_segments=1024),
        ),
        *_normalizations(few),
    ]


def _table_rows(point: Point) -> int:
    """Return of how many rows a table is that the cache holds."""
    return min(8192, CACHED_BYTES // (DTYPE_BYTES["float32"] * point[1]))


def _scattered(count: int, limit: int) -> tf.Tensor:
    return tf.constant([(index * 7919) % limit for index in range(count)], tf.int32)


def _normalizations(axes: Mapping[str, Sequence[int]]) -> list[Case]:
    def shapes(point: Point) -> Shapes:
        return ((1, point[0], 1, point[1]),)

    def forward(training: bool) -> Build:
        def at(point: Point) -> dict[str, Any]:
            ones = tf.ones(point[1:])
            known = ones[:0] if training else ones
            return {"scale": ones, "offset": ones, "mean": known, "variance": known}

        return raw_op("FusedBatchNormV3", at, is_training=training)

    def saved(point: Point) -> dict[str, Any]:
        ones = tf.ones(point[1:])
        spaces = {f"reserve_space_{number}": ones for number in (1, 2)}
        return {"scale": ones, **spaces, "reserve_space_3": ones[:0]}

    gradient = raw_op("FusedBatchNormGradV3", saved)
    columns = tuple(size + op_classes.CHANNEL_BLOCK // 2 for size in axes["columns"])
    unaligned = {**axes, "columns": columns}
    return [
        case
        for suffix, sizes in (("", axes), (op_classes.UNALIGNED, unaligned))
        for case in (
            Case(f"FusedBatchNorm.training{suffix}", sizes, shapes, forward(True)),
            Case(f"FusedBatchNorm.inference{suffix}", sizes, shapes, forward(False)),
            Case(
                f"FusedBatchNormGrad.training{suffix}",
                sizes,
                lambda point: shapes(point) * 2,
                gradient,
            ),
        )
    ]


def reductions(sizes: Sizes) -> list[Case]:
    """Measure sums and maxima along the last axis and along the first."""
    axes = {"kept": sizes.rows, "reduced": sizes.columns}
    across = {"kept": sizes.columns, "reduced": sizes.rows}
    return [
        Case(
            f"{name}.{where}",
            axes if where == "inner" else across,
            # The reduced axis is last for "inner", first for "outer".
            (lambda point: (point,))
            if where == "inner"
            else (lambda point: (point[::-1],)),
            raw_op(name, axis=[1 if where == "inner" else 0]),
        )
        for name in ("Sum", "Max")
        for where in op_classes.REDUCED
    ]
