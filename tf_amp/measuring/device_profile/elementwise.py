"""Elementwise ops, broadcasts and casts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from grappler_pass.costs.work import op_classes
from tf_amp.measuring.device_profile.cases import Build, Case, Point, Sizes, matrix_of


def _unary(name: str) -> Build:
    argument = {
        "Relu": "features",
        "LeakyRelu": "features",
        "Elu": "features",
        "Softplus": "features",
        "Softsign": "features",
        "Relu6": "features",
        "Selu": "features",
        "L2Loss": "t",
    }.get(name, "x")
    op = getattr(tf.raw_ops, name)
    return lambda value, point: op(**{argument: value})


def _binary(name: str) -> Build:
    first, second = {
        "ReluGrad": ("gradients", "features"),
        "EluGrad": ("gradients", "outputs"),
        "SoftplusGrad": ("gradients", "features"),
        "TanhGrad": ("y", "dy"),
        "SigmoidGrad": ("y", "dy"),
        "RsqrtGrad": ("y", "dy"),
        "SqrtGrad": ("y", "dy"),
        "SeluGrad": ("gradients", "outputs"),
        "SoftsignGrad": ("gradients", "features"),
    }.get(name, ("x", "y"))
    op = getattr(tf.raw_ops, name)
    return lambda left, right, point: op(**{first: left, second: right})


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
    one = [
        Case(name, axes, lambda point: (matrix_of(point),), _unary(name))
        for name in _UNARY
    ]
    two = [
        Case(name, axes, lambda point: (matrix_of(point),) * 2, _binary(name))
        for name in _BINARY
    ]
    select = Case(
        "SelectV2",
        axes,
        lambda point: (matrix_of(point),) * 2,
        lambda left, right, point: tf.raw_ops.SelectV2(
            condition=tf.ones(matrix_of(point), tf.bool), t=left, e=right
        ),
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
    return [*two[:3], *one, *two[3:], *_broadcasts(axes), select, uniform]


def _broadcasts(axes: Mapping[str, Sequence[int]]) -> list[Case]:
    def shape(point: Point, kind: str) -> tuple[int, ...]:
        rows, columns = matrix_of(point)
        return {"row": (columns,), "column": (rows, 1), "scalar": ()}[kind]

    def case(name: str, kind: str) -> Case:
        return Case(
            f"{name}.{kind}",
            axes,
            lambda point: (matrix_of(point), shape(point, kind)),
            _binary(name),
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
            lambda value, point: tf.raw_ops.Cast(x=value, DstT=target),
            label=f"{source}>{target}",
        )

    return [
        case(*ends)
        for low in ("bfloat16", "float16")
        for ends in (("float32", low), (low, "float32"))
    ]
