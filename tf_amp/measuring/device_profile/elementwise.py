"""Elementwise ops, broadcasts and casts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from grappler_pass.costs.work import op_classes
from tf_amp.measuring.device_profile.cases import (
    Build,
    Case,
    Point,
    Shapes,
    Sizes,
    matrix_of,
    raw_op,
)

_UNARY = (
    "Relu Tanh Sigmoid Neg Square Exp Erf Sqrt Rsqrt Log Reciprocal LeakyRelu Elu "
    "Softplus Softsign IsFinite Relu6 Erfc Floor Selu Log1p Expm1 Sin L2Loss"
).split()
_BINARY = (
    "AddV2 Mul RealDiv ReluGrad TanhGrad SigmoidGrad Greater RsqrtGrad EluGrad "
    "SoftplusGrad Pow SquaredDifference SeluGrad SoftsignGrad SqrtGrad"
).split()


def arithmetic(sizes: Sizes) -> list[Case]:
    """Measure ops of one or two equal operands, broadcasts and random numbers."""
    axes = {"elements": sizes.elements}

    def case(name: str, operands: int, build: Build | None = None) -> Case:
        def shapes(point: Point) -> Shapes:
            return (matrix_of(point),) * operands

        return Case(name, axes, shapes, build or raw_op(name))

    one = [case(name, 1) for name in _UNARY]
    two = [case(name, 2) for name in _BINARY]
    condition = raw_op(
        "SelectV2", lambda point: {"condition": tf.ones(matrix_of(point), tf.bool)}
    )
    uniform = Case(
        "RandomUniform",
        {"elements": tuple(size for size in sizes.elements if size < 1 << 20)},
        lambda point: ((1,),),
        lambda value, point: tf.raw_ops.RandomUniform(
            shape=matrix_of(point), dtype=value.dtype
        ),
        # Slow for its size: shorter chains.
        flops=lambda point: 300.0 * point[0],
    )
    return [
        *two[:3],
        *one,
        *two[3:],
        *_broadcasts(axes),
        case("SelectV2", 2, condition),
        uniform,
    ]


def _broadcasts(axes: Mapping[str, Sequence[int]]) -> list[Case]:
    def shape(point: Point, kind: str) -> tuple[int, ...]:
        rows, columns = matrix_of(point)
        return {"row": (columns,), "column": (rows, 1), "scalar": ()}[kind]

    def case(name: str, kind: str) -> Case:
        return Case(
            f"{name}.{kind}",
            axes,
            lambda point: (matrix_of(point), shape(point, kind)),
            raw_op(name),
        )

    return [
        case(name, kind)
        for name in sorted(op_classes.BROADCAST_CLASSES)
        for kind in op_classes.BROADCASTS
    ]


def casts(sizes: Sizes) -> list[Case]:
    """Measure casts; the pair of dtypes stands where others have one."""

    def case(source: str, target: str) -> Case:
        return Case(
            "Cast",
            {"elements": sizes.elements},
            lambda point: (matrix_of(point),),
            raw_op("Cast", DstT=target),
            label=f"{source}>{target}",
        )

    return [
        case(*ends)
        for low in ("bfloat16", "float16")
        for ends in (("float32", low), (low, "float32"))
    ]
