"""The classes of ops that a device is measured by: ops and inputs at points of axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.costs import op_classes
from grappler_pass.costs.calls import CACHED_BYTES, DTYPE_BYTES
from grappler_pass.graph.type_slots import op_def_of

Point = tuple[int, ...]
Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Axes = Mapping[str, Sequence[int]]
# Makes an op of its inputs, at a point, which is named.
Build = Callable[..., Any]


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
        most_elements: that all tensors of one call may have together.
        most_flops: of one call.
    """

    op_class: str
    axes: Axes
    shapes: Callable[[Point], Shapes]
    build: Build
    flops: Callable[[Point], float] = lambda point: 0.0
    minus: Build | None = None
    label: str | None = None
    most_elements: int = 3 << 24
    most_flops: float = 9e9

    def fits(self, point: Point) -> bool:
        """Return whether a call at ``point`` is small enough to be measured."""
        elements = sum(math.prod(shape) for shape in self.shapes(point))
        return elements <= self.most_elements and self.flops(point) <= self.most_flops


def points_of(case: Case) -> list[Point]:
    """Return the points of ``case`` that are small enough to be measured."""
    return [point for point in product(*case.axes.values()) if case.fits(point)]


class Sizes(NamedTuple):
    """How densely the axes are laid out, and what is too large to be measured.

    The default of the latter is a CPU's: 192 MiB of float32, and a tenth of a second.
    """

    elements: tuple[int, ...]
    matrix: tuple[int, ...]
    batch: tuple[int, ...]
    batched_matrix: tuple[int, ...]
    pixels: tuple[int, ...]
    channels: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    most_elements: int = 3 << 24
    most_flops: float = 9e9


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


def all_cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return every class to measure, the most decisive first."""
    matrix = dict.fromkeys(op_classes.MATMUL_AXES, sizes.matrix)
    batched = {"batch": sizes.batch, **dict.fromkeys("mkn", sizes.batched_matrix)}
    pixels = {"pixels": sizes.pixels[:4], "channels": sizes.channels}

    def conv_axes(area: int) -> Axes:
        channels = ((3, 32), (16, 64)) if area >= 49 else (sizes.channels,) * 2
        return dict(zip(op_classes.CONV_AXES, (sizes.pixels, *channels), strict=True))

    cases = (
        *_products("matmul", matrix, "MatMul", ("transpose_a", "transpose_b")),
        # The pair of dtypes stands where others have one.
        *(
            Case(
                "Cast",
                {"elements": sizes.elements},
                _laid_out("matrix"),
                raw_op("Cast", DstT=target),
                label=f"{source}>{target}",
            )
            for low in ("bfloat16", "float16")
            for source, target in (("float32", low), (low, "float32"))
        ),
        *_arithmetic(sizes),
        *_convolutions("conv", "Conv2D", op_classes.CONV_KERNELS, conv_axes, flops=2.0),
        *_by_rows(sizes),
        *_reductions(sizes),
        *_products("batch_matmul", batched, "BatchMatMulV2", ("adj_x", "adj_y")),
        # Strided gradients are far slower in 16 bits than their flops tell.
        *_convolutions(
            "depthwise",
            "DepthwiseConv2dNative",
            op_classes.DEPTHWISE_KERNELS,
            lambda area: pixels,
            flops=200.0,
        ),
        *_fused(sizes),
        *_movement(sizes),
        *_pooling(sizes),
    )
    return tuple(
        replace(c, most_elements=sizes.most_elements, most_flops=sizes.most_flops)
        for c in cases
    )


def raw_op(
    op: str,
    at: Callable[[Point], Mapping[str, Any]] = lambda point: {},
    /,
    **fixed: Any,
) -> Build:
    """Return a maker of an op from tensors, which are its inputs in their order.

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


def _matrix(point: Point) -> Shape:
    """Lay elements out as a matrix, as most activations are."""
    columns = min(256, max(point[0] // 8, 1))
    return (point[0] // columns, columns)


# Shapes of an input at a point whose first axis are its elements.
_LAYOUTS: Mapping[str, Callable[[Point], Shape]] = {
    "matrix": _matrix,
    "row": lambda point: _matrix(point)[1:],
    "column": lambda point: (_matrix(point)[0], 1),
    "scalar": lambda point: (),
    "one row": lambda point: (1, _matrix(point)[1]),
    "half": lambda point: (_matrix(point)[0], _matrix(point)[1] // 2),
    "double": lambda point: (_matrix(point)[0], 2 * _matrix(point)[1]),
    # [batch, positions, 8 heads, 32 features]
    "heads": lambda point: (max(1, point[0] >> 14), min(point[0] >> 8, 64), 8, 32),
    # A fused product's own are small: what is measured is the rest of it.
    "left": lambda point: (_matrix(point)[0], 16),
    "right": lambda point: (16, _matrix(point)[1]),
}


def _laid_out(*layouts: str) -> Callable[[Point], Shapes]:
    """Return a function from points to shapes of inputs of such layouts."""
    makers = [_LAYOUTS[name] for name in layouts]
    return lambda point: tuple(make(point) for make in makers)


# Suffix of the class of a product, and which of its operands is transposed.
_TRANSPOSED = {"": (False, False), ".ta": (True, False), ".tb": (False, True)}


def _products(op_class: str, axes: Axes, op: str, flags: Sequence[str]) -> list[Case]:
    """Measure products by all dimensions, in each layout."""

    def operands(layout: tuple[bool, bool], point: Point) -> Shapes:
        *batch, m, k, n = point
        left = (k, m) if layout[0] else (m, k)
        right = (n, k) if layout[1] else (k, n)
        return (*batch, *left), (*batch, *right)

    return [
        Case(
            f"{op_class}{suffix}",
            axes,
            functools.partial(operands, layout),
            raw_op(op, **dict(zip(flags, layout, strict=True))),
            flops=lambda point: 2.0 * math.prod(point),
        )
        for suffix, layout in _TRANSPOSED.items()
    ]


# In the order of what they decide: the first three are measured first.
_FIRST = ("AddV2", "Mul", "RealDiv")
_UNARY = (
    "Relu Tanh Sigmoid Neg Square Exp Erf Sqrt Rsqrt Log Reciprocal LeakyRelu Elu "
    "Softplus Softsign IsFinite Relu6 Erfc Floor Selu Log1p Expm1 Sin L2Loss"
).split()
_BINARY = (
    "ReluGrad TanhGrad SigmoidGrad Greater RsqrtGrad EluGrad "
    "SoftplusGrad Pow SquaredDifference SeluGrad SoftsignGrad SqrtGrad"
).split()


def _arithmetic(sizes: Sizes) -> Iterator[Case]:
    """Measure ops of one or two equal operands, broadcasts and random numbers."""
    axes, two = {"elements": sizes.elements}, ("matrix", "matrix")
    for names, layouts in ((_FIRST, two), (_UNARY, two[:1]), (_BINARY, two)):
        for name in names:
            yield Case(name, axes, _laid_out(*layouts), raw_op(name))
    for name in sorted(op_classes.BROADCAST_CLASSES):
        for kind in op_classes.BROADCASTS:
            shapes = _laid_out("matrix", kind)
            yield Case(f"{name}.{kind}", axes, shapes, raw_op(name))
    condition = raw_op(
        "SelectV2",
        lambda point: {"condition": tf.constant(True, tf.bool, _matrix(point))},
    )
    yield Case("SelectV2", axes, _laid_out(*two), condition)
    yield Case(
        "RandomUniform",
        {"elements": tuple(size for size in sizes.elements if size < 1 << 20)},
        lambda point: ((1,),),
        lambda value, point: tf.raw_ops.RandomUniform(
            shape=_matrix(point), dtype=value.dtype
        ),
        # Slow for its size: shorter chains.
        flops=lambda point: 300.0 * point[0],
    )


# Batch and side of the images that make up so many pixels of a convolution's result.
_IMAGES = {64: (1, 8), 256: (4, 8), 1024: (4, 16), 4096: (16, 16)}


# What follows the name of an op, its operands among image, kernel and result, and the
# argument that has the shape of one of these.
_DIRECTIONS: Mapping[str, tuple[str, tuple[int, int], str, int]] = {
    "forward": ("", (0, 1), "", 2),
    "input_gradient": ("BackpropInput", (1, 2), "input_sizes", 0),
    "filter_gradient": ("BackpropFilter", (0, 2), "filter_sizes", 1),
}


def _convolutions(
    op_class: str,
    op: str,
    kernels: Mapping[int, Sequence[int]],
    axes: Callable[[int], Axes],
    *,
    flops: float,
) -> list[Case]:
    """Measure an op and both gradients with kernels, by area and by strides.

    Axes are pixels of the result and channels.
    """

    def case(area: int, stride: int, direction: str) -> Case:
        suffix, operands, argument, at = _DIRECTIONS[direction]

        def sizes(point: Point) -> dict[str, Shape]:
            tensors = _tensors(point, area, stride)
            return {argument: tensors[at]} if argument else {}

        def shapes(point: Point) -> Shapes:
            return tuple(_tensors(point, area, stride)[i] for i in operands)

        strides = [1, stride, stride, 1]
        return Case(
            f"{op_class}.{direction}.{area}.s{stride}",
            axes(area),
            shapes,
            raw_op(f"{op}{suffix}", sizes, strides=strides, padding="SAME"),
            flops=lambda point: flops * math.prod(point) * area,
        )

    return [
        case(area, stride, direction)
        for area, strides in kernels.items()
        for stride in strides
        for direction in op_classes.DIRECTIONS
    ]


def _tensors(point: Point, area: int, stride: int) -> Shapes:
    """Return shapes of image, kernel and result; a depthwise one has its channels."""
    pixels, channels, *others = point
    side = round(area**0.5)
    batch, small = _IMAGES.get(pixels, (pixels // 1024, 32))
    image = (batch, small * stride, small * stride, channels)
    kernel = (side, side, channels, *(others or [1]))
    return image, kernel, (batch, small, small, point[-1])


def _by_rows(sizes: Sizes) -> list[Case]:
    """Measure ops whose rows and columns count separately."""
    axes = {"rows": sizes.rows, "columns": sizes.columns}
    few = {"rows": sizes.rows, "columns": sizes.columns[1:]}

    def case(name: str, build: Build, axes: Axes = axes) -> Case:
        return Case(name, axes, lambda point: (point,), build)

    cross_entropy = raw_op(
        "SparseSoftmaxCrossEntropyWithLogits",
        lambda point: {"labels": tf.zeros(point[:1], tf.int32)},
    )
    segment = raw_op(
        "UnsortedSegmentSum",
        lambda point: {"segment_ids": _scattered(point[0], 1024)},
        num_segments=1024,
    )
    gather = raw_op(
        "GatherV2",
        lambda point: {"indices": _scattered(point[0], _table_rows(point))},
        axis=0,
    )
    return [
        Case("BiasAdd", few, lambda point: (point, point[1:]), raw_op("BiasAdd")),
        case("BiasAddGrad", raw_op("BiasAddGrad"), few),
        case("Softmax", raw_op("Softmax")),
        case("LogSoftmax", raw_op("LogSoftmax")),
        case("cross_entropy", cross_entropy),
        Case("gather", axes, lambda point: ((_table_rows(point), point[1]),), gather),
        case("segment", segment),
        *_normalizations(few),
    ]


def _table_rows(point: Point) -> int:
    """Return of how many rows a table is that the cache holds."""
    return min(8192, CACHED_BYTES // (DTYPE_BYTES["float32"] * point[1]))


def _scattered(count: int, limit: int) -> tf.Tensor:
    return tf.constant([(index * 7919) % limit for index in range(count)], tf.int32)


def _ones(count: int) -> tf.Tensor:
    """Return a constant: `tf.ones` of many is an op, which would be timed, too."""
    return tf.constant(1.0, tf.float32, [count])


def _normalizations(axes: Axes) -> Iterator[Case]:
    def shapes(point: Point) -> Shapes:
        return ((1, point[0], 1, point[1]),)

    def forward(training: bool) -> Build:
        def at(point: Point) -> dict[str, Any]:
            ones, none = _ones(point[1]), _ones(0)
            known = none if training else ones
            return {"scale": ones, "offset": ones, "mean": known, "variance": known}

        return raw_op("FusedBatchNormV3", at, is_training=training)

    def saved(point: Point) -> dict[str, Any]:
        ones = _ones(point[1])
        spaces = {f"reserve_space_{number}": ones for number in (1, 2)}
        return {"scale": ones, **spaces, "reserve_space_3": _ones(0)}

    gradient = raw_op("FusedBatchNormGradV3", saved)
    columns = tuple(size + op_classes.CHANNEL_BLOCK // 2 for size in axes["columns"])
    unaligned = {**axes, "columns": columns}
    for suffix, at in (("", axes), (op_classes.UNALIGNED, unaligned)):
        yield Case(f"FusedBatchNorm.training{suffix}", at, shapes, forward(True))
        yield Case(f"FusedBatchNorm.inference{suffix}", at, shapes, forward(False))
        name = f"FusedBatchNormGrad.training{suffix}"
        yield Case(name, at, lambda point: shapes(point) * 2, gradient)


def _reductions(sizes: Sizes) -> Iterator[Case]:
    """Measure sums and maxima along the last axis, "inner", and along the first."""
    inner = {"kept": sizes.rows, "reduced": sizes.columns}
    outer = {"kept": sizes.columns, "reduced": sizes.rows}
    for name in ("Sum", "Max"):
        rows, columns = raw_op(name, axis=[1]), raw_op(name, axis=[0])
        yield Case(f"{name}.inner", inner, lambda point: (point,), rows)
        yield Case(f"{name}.outer", outer, lambda point: (point[::-1],), columns)


# What is measured is a difference: few sizes, far apart.
_FUSED_ELEMENTS = (1 << 12, 1 << 14, 1 << 19, 1 << 21)
_FUSED = "Relu Relu6 Elu LeakyRelu Tanh Sigmoid GeluExact GeluApproximate".split()


def _fused(sizes: Sizes) -> list[Case]:
    """Measure what a fused product takes longer than the plain one."""
    few = tuple(size for size in sizes.elements if size in _FUSED_ELEMENTS)
    axes = {"elements": few or sizes.elements}
    shapes = _laid_out("left", "right", "row")

    def product(op: str, tensors: Sequence[Any], names: Sequence[str]) -> Any:
        """Make a product with others fused behind."""
        dtype, value = tensors[0].dtype, tf.compat.v1.AttrValue
        fused_ops = value()
        fused_ops.list.s.extend(name.encode() for name in names)
        kind, count = value(type=dtype.as_datatype_enum), value(i=len(tensors) - 2)
        attrs = {"T": kind, "num_args": count, "fused_ops": fused_ops}
        graph = tf.compat.v1.get_default_graph()
        return graph.create_op(
            op, list(tensors), [dtype], name="fused", attrs=attrs
        ).outputs[0]

    def fused(*names: str) -> Build:
        """Make the node that TensorFlow's remapper makes of a product and others."""

        def build(*tensors: Any, point: Point) -> Any:
            return product("_FusedMatMul", tensors, names)

        return build

    def batched(*tensors: Any, point: Point) -> Any:
        """Make what the pass makes of a product in 16 bits and its bias."""
        one = tf.ones([], tensors[0].dtype)
        left, right, row = (
            tf.reshape(tensor, [1] * (4 - tensor.shape.rank) + tensor.shape.as_list())
            for tensor in tensors
        )
        operands = (left, right, one, row)
        result = product("_MklFusedBatchMatMulV2", operands, ("Mul", "Add"))
        return tf.reshape(result, result.shape[2:])

    biased = fused("BiasAdd")
    return [
        Case("fused.BiasAdd", axes, shapes, biased, minus=raw_op("MatMul")),
        Case(op_classes.BATCHED_BIAS, axes, shapes, batched, minus=raw_op("MatMul")),
        *(
            Case(f"fused.{name}", axes, shapes, fused("BiasAdd", name), minus=biased)
            for name in _FUSED
        ),
    ]


def _movement(sizes: Sizes) -> list[Case]:
    """Measure what copies values from place to place."""

    def case(name: str, layouts: Sequence[str], build: Build, first: int = 1) -> Case:
        axes = {"elements": sizes.elements[first:]}
        return Case(name, axes, _laid_out(*layouts), build)

    def padding(point: Point) -> dict[str, Any]:
        return {"paddings": [[0, 0], [0, _matrix(point)[1] // 2]]}

    def concatenated(*values: Any, point: Point) -> Any:
        return tf.raw_ops.ConcatV2(values=values, axis=1)

    begin = raw_op("Slice", lambda point: {"size": _matrix(point)}, begin=[0, 0])
    tile = raw_op("BroadcastTo", lambda point: {"shape": _matrix(point)})
    return [
        case("Transpose", ["heads"], raw_op("Transpose", perm=[0, 2, 1, 3]), first=2),
        case("ConcatV2", ["half", "half"], concatenated),
        case("Slice", ["double"], begin),
        case("Pad", ["half", "half"], raw_op("Pad", padding)),
        case("Tile", ["one row"], tile),
        case("ReverseV2", ["matrix"], raw_op("ReverseV2", axis=[1])),
    ]


def _pooling(sizes: Sizes) -> list[Case]:
    """Measure pooling and its gradients, by elements of the smaller tensor."""
    axes = {"elements": sizes.elements[1:-2], "window": (4, 9, 49)}

    def small(point: Point) -> Shape:
        edge = 4 if point[0] < 1 << 14 else 16
        return (point[0] // (edge * edge * 64), edge, edge, 64)

    def large(point: Point) -> Shape:
        batch, edge, _, channels = small(point)
        return (batch, 2 * edge, 2 * edge, channels)

    def window(point: Point) -> dict[str, Any]:
        side = round(point[1] ** 0.5)
        return {"ksize": [1, side, side, 1]}

    def average_gradient(point: Point) -> dict[str, Any]:
        return {"orig_input_shape": large(point), **window(point)}

    def case(op: str, *inputs: Callable[[Point], Shape], at: Any = window) -> Case:
        def shapes(point: Point) -> Shapes:
            return tuple(shape(point) for shape in inputs)

        build = raw_op(op, at, strides=[1, 2, 2, 1], padding="SAME")
        return Case(f"pool.{op}", axes, shapes, build)

    return [
        case("MaxPool", large),
        case("AvgPool", large),
        case("MaxPoolGrad", large, small, small),
        case("AvgPoolGrad", small, at=average_gradient),
    ]
