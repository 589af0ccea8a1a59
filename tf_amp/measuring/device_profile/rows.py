"""Ops along rows and columns: softmax, normalization, look-ups, reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.work import op_classes
from grappler_pass.costs.work.piece import CACHED_BYTES
from tf_amp.measuring.device_profile.cases import Build, Case, Point, Shapes, Sizes


def by_rows(sizes: Sizes) -> list[Case]:
    """Measure ops whose rows and columns count separately."""
    axes = {"rows": sizes.rows, "columns": sizes.columns}
    few = {"rows": sizes.rows, "columns": sizes.columns[1:]}

    def matrix(point: Point) -> Shapes:
        return (point,)

    return [
        Case(
            "BiasAdd",
            few,
            lambda point: (point, point[1:]),
            lambda value, bias, point: tf.raw_ops.BiasAdd(value=value, bias=bias),
        ),
        Case(
            "BiasAddGrad",
            few,
            matrix,
            lambda value, point: tf.raw_ops.BiasAddGrad(out_backprop=value),
        ),
        Case(
            "Softmax",
            axes,
            matrix,
            lambda value, point: tf.raw_ops.Softmax(logits=value),
        ),
        Case(
            "LogSoftmax",
            axes,
            matrix,
            lambda value, point: tf.raw_ops.LogSoftmax(logits=value),
        ),
        Case(
            "cross_entropy",
            axes,
            matrix,
            lambda value, point: (
                tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
                    features=value, labels=tf.zeros(point[:1], tf.int32)
                ).loss
            ),
        ),
        Case(
            "gather",
            axes,
            lambda point: ((_table_rows(point), point[1]),),
            lambda table, point: tf.raw_ops.GatherV2(
                params=table,
                indices=_scattered(point[0], _table_rows(point)),
                axis=0,
            ),
        ),
        Case(
            "segment",
            axes,
            matrix,
            lambda value, point: tf.raw_ops.UnsortedSegmentSum(
                data=value, segment_ids=_scattered(point[0], 1024), num_segments=1024
            ),
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
        def build(value: Any, point: Point) -> Any:
            ones = tf.ones(point[1:])
            return tf.raw_ops.FusedBatchNormV3(
                x=value,
                scale=ones,
                offset=ones,
                mean=ones[:0] if training else ones,
                variance=ones[:0] if training else ones,
                is_training=training,
            ).y

        return build

    def gradient(above: Any, value: Any, point: Point) -> Any:
        ones = tf.ones(point[1:])
        return tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=above,
            x=value,
            scale=ones,
            reserve_space_1=ones,
            reserve_space_2=ones,
            reserve_space_3=ones[:0],
        ).x_backprop

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
            _reduce(name, axis=1 if where == "inner" else 0),
        )
        for name in ("Sum", "Max")
        for where in op_classes.REDUCED
    ]


def _reduce(name: str, axis: int) -> Build:
    op = getattr(tf.raw_ops, name)
    return lambda value, point: op(input=value, axis=[axis])
