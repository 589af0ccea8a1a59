"""Draw cases: convolutions, products, fused ones, elementwise ops, sums and norms."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests import kernel_numpy
from tests.kernel_calls import KernelCase, Shape

_CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 20, 24, 32, 33, 40, 48, 64, 80, 96, 128)
_SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 16, 21, 28, 32, 56)
_WINDOWS = (1, 1, 2, 3, 3, 3, 4, 5, 7, 8)
_BATCHES = (1, 1, 2, 3, 4, 5, 8, 14, 16, 32)
_DIMENSIONS = (1, 1, 2, 3, 4, 7, 8, 11, 16, 17, 31, 32, 33, 40, 64, 100, 128, 256)
_GRADIENTS = ("BackpropInput", "BackpropFilter")
# Multiply-adds of most cases, and of one in thirty.
_WORK, _LARGE_WORK = 2_000_000, 40_000_000


@dataclasses.dataclass(frozen=True)
class Conv:
    """A convolution of 2 or 3 spatial axes, channels last.

    Attributes:
      batch: images.
      size: of the images, by axis.
      channels: of the images.
      window: by axis.
      out: channels of the result; of a depthwise one the multiplier.
      strides: by axis.
      dilations: by axis.
      padding: SAME, VALID or EXPLICIT.
      explicit: before and after each axis.
      groups: of channels.
    """

    batch: int
    size: Shape
    channels: int
    window: Shape
    out: int
    strides: Shape
    dilations: Shape = ()
    padding: str = "VALID"
    explicit: tuple[int, ...] = ()
    groups: int = 1
    depthwise: bool = False

    @property
    def result_size(self) -> Shape:
        """Of the result, by axis; not positive where the window does not fit."""
        return kernel_numpy.padded_sizes((1, *self.size, 1), self.window, self._steps)[
            1
        ]

    @property
    def work(self) -> int:
        """Multiply-adds."""
        count = self.batch * self.channels * self.out
        return count * math.prod((*self.result_size, *self.window)) // self.groups

    @property
    def _steps(self) -> dict[str, Any]:
        """Attributes of how the window moves."""
        steps: dict[str, Any] = {"strides": [1, *self.strides, 1]}
        if self.dilations:
            steps["dilations"] = [1, *self.dilations, 1]
        steps["padding"] = self.padding
        if self.padding == "EXPLICIT":
            steps["explicit_paddings"] = [0, 0, *self.explicit, 0, 0]
        return steps

    def case(self, part: str = "") -> KernelCase:
        """Return it as a case; `part` is "", "BackpropInput" or "BackpropFilter"."""
        images = (self.batch, *self.size, self.channels)
        window = (*self.window, self.channels // self.groups, self.out)
        deep = self.channels * self.out if self.depthwise else self.out
        slopes = (self.batch, *self.result_size, deep)
        three = len(self.size) == 3
        op = "Conv3D" if three else "Conv2D"
        if self.depthwise:
            op = "DepthwiseConv2dNative"
        version = "V2" if three and part else ""
        attributes = list(self._steps.items())
        if part == "BackpropInput":
            operands = (("filter", window), ("out_backprop", slopes))
            attributes.insert(0, ("input_sizes", list(images)))
        elif part == "BackpropFilter":
            operands = (("input", images), ("out_backprop", slopes))
            attributes.insert(0, ("filter_sizes", list(window)))
        else:
            operands = (("input", images), ("filter", window))
        return KernelCase(op + part + version, operands, tuple(attributes))


def draw(seed: int) -> KernelCase:
    """Return the case of a seed."""
    pick = random.Random(seed)
    family = pick.choices(list(_FAMILIES), list(_FAMILIES.values()))[0]
    case = family(pick)
    if case.mode == "eager" and pick.random() < 0.03:
        return dataclasses.replace(case, mode="xla")
    return case


def _conv(pick: random.Random) -> KernelCase:
    conv = _drawn_conv(pick)
    part = pick.choice(("", *_GRADIENTS))
    return conv.case(part)


def _drawn_conv(pick: random.Random) -> Conv:
    work = _LARGE_WORK if pick.random() < 0.03 else _WORK
    while True:
        conv = _any_conv(pick)
        if min(conv.result_size) > 0 and conv.work <= work:
            return conv


def _any_conv(pick: random.Random) -> Conv:
    rank = pick.choice((1, 2, 2, 2, 3))
    axes = 3 if rank == 3 else 2
    size = tuple(pick.choice(_SIZES) for _ in range(axes))
    window = tuple(pick.choice(_WINDOWS) for _ in range(axes))
    if rank == 3:
        size = tuple(min(each, 9) for each in size)
        window = tuple(min(each, 4) for each in window)
    if rank == 1:
        size, window = (1, size[1] * 4), (1, window[1])
    elif pick.random() < 0.5:
        size, window = size[:-1] + size[-2:-1], window[:-1] + window[-2:-1]
    kind = pick.choices(("plain", "depthwise", "grouped"), (8, 3, 1))[0]
    channels = pick.choice(_CHANNELS)
    depthwise = kind == "depthwise" and rank < 3
    groups = 1
    if kind == "grouped" and axes == 2:
        groups = pick.choice((2, 4, 8))
        channels = groups * pick.choice((1, 2, 4, 8, 16))
    out = pick.choice((1, 1, 2, 3)) if depthwise else pick.choice(_CHANNELS)
    if groups > 1:
        out = groups * pick.choice((1, 2, 4, 8, 16))
    conv = Conv(
        batch=pick.choice(_BATCHES),
        size=size,
        channels=channels,
        window=window,
        out=out,
        strides=_strides(pick, window, square=depthwise),
        padding=pick.choice(("SAME", "VALID")),
        groups=groups,
        depthwise=depthwise,
    )
    if pick.random() < 0.1:
        dilation = pick.choice((2, 3))
        return dataclasses.replace(
            conv, strides=(1,) * axes, dilations=(dilation,) * axes
        )
    if axes == 2 and pick.random() < 0.1:
        explicit = tuple(pick.choice((0, 0, 1, 2)) for _ in range(4))
        return dataclasses.replace(conv, padding="EXPLICIT", explicit=explicit)
    return conv


def _strides(pick: random.Random, window: Shape, *, square: bool) -> Shape:
    how = pick.choice(("one", "one", "two", "window", "any"))
    if how == "window" and not square:
        return window
    if how == "any" and not square:
        return tuple(pick.choice((1, 2, 3, 4)) for _ in window)
    return ({"one": 1}.get(how, 2),) * len(window)


_ACTIVATIONS = (
    *("Relu", "Relu6", "Elu", "LeakyRelu", "Tanh", "Sigmoid", "GeluTanh", "GeluErf"),
)


def _fused_conv(pick: random.Random) -> KernelCase:
    conv = _drawn_conv(pick)
    if pick.random() < 0.15 and not conv.depthwise and conv.groups == 1:
        case = conv.case("BackpropInput")
        shape = (conv.batch, *conv.size, conv.channels)
        return with_steps(case, shape, ("BiasAdd", pick.choice(_ACTIVATIONS)))
    case = conv.case()
    deep = conv.channels * conv.out if conv.depthwise else conv.out
    return with_steps(case, (conv.batch, *conv.result_size, deep), _chain(pick))


def _chain(pick: random.Random) -> tuple[str, ...]:
    activation = pick.choice(_ACTIVATIONS)
    chains: Sequence[tuple[str, ...]] = (
        ("BiasAdd",),
        ("BiasAdd", activation),
        ("BiasAdd", activation),
        ("BiasAdd", "Add"),
        ("BiasAdd", "Add", activation),
        ("Add",),
        (activation,),
    )
    return pick.choice(chains)


def with_steps(case: KernelCase, shape: Shape, then: Sequence[str]) -> KernelCase:
    """Return the case with steps behind it, in a function; `shape` is its result's."""
    shapes = {"BiasAdd": ("bias", shape[-1:]), "Add": ("other", shape)}
    shapes["Mul"] = ("factor", ())
    extra = tuple(shapes[step] for step in then if step in shapes)
    return dataclasses.replace(
        case, operands=case.operands + extra, then=tuple(then), mode="fused"
    )


def _padded_conv(pick: random.Random) -> KernelCase:
    pads = [[0, 0], *([pick.choice((0, 1, 2, 3))] * 2 for _ in range(2)), [0, 0]]
    channels, out = pick.choice(_CHANNELS), pick.choice(_CHANNELS[:12])
    window = pick.choice((1, 3, 5, 7))
    size = pick.choice((7, 8, 14, 20))
    return KernelCase(
        "padded_conv",
        (("x", (2, size, size, channels)), ("w", (window, window, channels, out))),
        (("strides", [pick.choice((1, 2))] * 2), ("paddings", pads)),
        mode="fused",
    )


def _product(pick: random.Random) -> KernelCase:
    m, k, n = _product_sizes(pick)
    ta, tb = pick.random() < 0.3, pick.random() < 0.3
    operands = (("a", (k, m) if ta else (m, k)), ("b", (n, k) if tb else (k, n)))
    attributes = (("transpose_a", ta), ("transpose_b", tb))
    case = KernelCase("MatMul", operands, attributes)
    return with_steps(case, (m, n), _chain(pick)) if pick.random() < 0.5 else case


def _product_sizes(pick: random.Random) -> tuple[int, int, int]:
    while True:
        m, k, n = (pick.choice(_DIMENSIONS) for _ in range(3))
        if pick.random() < 0.1:
            k = pick.choice((600, 2500, 5000))
        if m * k * n <= _WORK:
            return m, k, n


# Batches of two operands. An X by 1 against ones corrupts memory in every type, and
# stands in the directed cases alone.
_BATCH_PAIRS: Sequence[tuple[Shape, Shape]] = (
    *(((2,), (2,)), ((5,), (5,)), ((2, 3), (2, 3)), ((1,), (4,)), ((4,), (1,))),
    *(((2, 1), (1, 3)), ((1, 3), (2, 3)), ((5,), ()), ((), (5,)), ((2, 3), (3,))),
)


def _batch_product(pick: random.Random) -> KernelCase:
    m, k, n = _product_sizes(pick)
    left, right = pick.choice(_BATCH_PAIRS)
    ta, tb = pick.random() < 0.4, pick.random() < 0.4
    x = (*left, k, m) if ta else (*left, m, k)
    y = (*right, n, k) if tb else (*right, k, n)
    case = KernelCase(
        "BatchMatMulV2", (("x", x), ("y", y)), (("adj_x", ta), ("adj_y", tb))
    )
    if left != right or pick.random() < 0.5:
        return case
    shape = (*left, m, n)
    return with_steps(case, shape, pick.choice((("Mul",), ("Mul", "Add"), ("Add",))))


_EQUATIONS = (
    *("ij,jk->ik", "bij,bjk->bik", "bij,jk->bik", "bhqd,bhkd->bhqk", "bi,bj->bij"),
    *("abc,cde->abde", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "ij,ij->j", "ab,b->a"),
)


def _einsum(pick: random.Random) -> KernelCase:
    equation = pick.choice(_EQUATIONS)
    sizes: dict[str, int] = {}
    for letter in equation.replace(",", "").split("->")[0]:
        sizes.setdefault(letter, pick.choice((1, 2, 3, 4, 8, 11, 16, 32)))
    shapes = [tuple(sizes[x] for x in t) for t in equation.split("->")[0].split(",")]
    operands = tuple(zip("ab", shapes, strict=True))
    return KernelCase("Einsum", operands, (("equation", equation),))


_UNARY = (
    *("Tanh", "Sigmoid", "Exp", "Softplus", "Elu", "Selu", "Erf", "Softsign"),
    *("Square", "Neg", "Abs", "Sign"),
)


def _elementwise(pick: random.Random) -> KernelCase:
    shape = _shape(pick)
    kind = pick.randrange(6)
    if kind == 0:
        return KernelCase(
            _with_x := pick.choice(_UNARY), ((_X.get(_with_x, "x"), shape),)
        )
    if kind == 1:
        op = pick.choice(("Relu", "Relu6", "LeakyRelu"))
        return KernelCase(op, (("features", shape),))
    if kind == 2:
        op = pick.choice(("ReluGrad", "Relu6Grad", "LeakyReluGrad"))
        return KernelCase(op, (("gradients", shape), ("features", shape)))
    if kind == 3:
        op = pick.choice(("TanhGrad", "SigmoidGrad"))
        return KernelCase(op, (("y", shape), ("dy", shape)))
    if kind == 4:
        return KernelCase("BiasAdd", (("value", shape), ("bias", shape[-1:])))
    other = tuple(pick.choice((1, n)) for n in shape) if pick.random() < 0.5 else shape
    op = pick.choice(("AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference"))
    return KernelCase(op, (("x", shape), ("y", other)))


_X = {"Softplus": "features", "Elu": "features", "Selu": "features"}
_X["Softsign"] = "features"


def _shape(pick: random.Random) -> Shape:
    while True:
        shape = tuple(pick.choice(_DIMENSIONS) for _ in range(pick.choice((2, 3, 4))))
        if math.prod(shape) <= 300_000:
            return shape


def _sum(pick: random.Random) -> KernelCase:
    shape = _shape(pick)
    kind = pick.randrange(5)
    if kind == 0:
        return KernelCase("BiasAddGrad", (("out_backprop", shape),))
    if kind == 1:
        return KernelCase("Cumsum", (("x", shape),), (("axis", len(shape) - 1),))
    if kind == 2:
        count = pick.choice((2, 3))
        return KernelCase("AddN", tuple((name, shape) for name in "abc"[:count]))
    axes = sorted(pick.sample(range(len(shape)), pick.randint(1, len(shape))))
    op = pick.choice(("Sum", "Mean", "Max", "Min"))
    return KernelCase(op, (("input", shape),), (("axis", axes),))


def _pool(pick: random.Random) -> KernelCase:
    size, window = pick.choice((4, 5, 8, 14)), pick.choice((1, 2, 3, 4))
    stride = pick.choice((1, 2, window))
    channels = pick.choice(_CHANNELS)
    axes = pick.choice((2, 2, 3))
    shape = (pick.choice((1, 2, 8)), *(size,) * axes, channels)
    op = pick.choice(("MaxPool", "AvgPool")) + ("3D" if axes == 3 else "")
    name = "value" if op == "AvgPool" else "input"
    attributes = (
        ("ksize", [1, *(window,) * axes, 1]),
        ("strides", [1, *(stride,) * axes, 1]),
        ("padding", pick.choice(("SAME", "VALID"))),
    )
    return KernelCase(op, ((name, shape),), attributes)


def _norm(pick: random.Random) -> KernelCase:
    shape = _shape(pick)
    kind = pick.randrange(5)
    if kind == 0:
        return KernelCase("Softmax", (("logits", shape),))
    if kind == 1:
        operands = (("x", shape), ("scale", shape[-1:]), ("offset", shape[-1:]))
        return KernelCase("layer_norm", operands, mode="fused")
    if kind == 2:
        return KernelCase("swish", (("x", shape),), mode="fused")
    shape = (pick.choice((2, 4, 8)), 7, pick.choice((3, 7, 12)), pick.choice(_CHANNELS))
    deep = shape[-1:]
    training = pick.random() < 0.5
    if kind == 3:
        operands = (("x", shape), ("scale", deep), ("offset", deep))
        moments = (0,) if training else deep
        operands += (("mean", moments), ("variance", moments))
        return KernelCase("FusedBatchNormV3", operands, (("is_training", training),))
    names = ("reserve_space_1", "reserve_space_2", "reserve_space_3")
    operands = (("y_backprop", shape), ("x", shape), ("scale", deep))
    operands += tuple((name, deep) for name in names)
    return KernelCase("FusedBatchNormGradV3", operands, (("is_training", training),))


# How often of a hundred each family is drawn.
_FAMILIES: dict[Callable[[random.Random], KernelCase], int] = {
    _conv: 46,
    _fused_conv: 12,
    _padded_conv: 2,
    _product: 10,
    _batch_product: 12,
    _einsum: 3,
    _elementwise: 5,
    _sum: 5,
    _pool: 3,
    _norm: 3,
}


def directed(seed: int) -> KernelCase:
    """Return the case of a seed that is near the conditions of known faults."""
    pick = random.Random(seed)
    return _DIRECTED[seed % len(_DIRECTED)](pick)


def _narrow_result(pick: random.Random) -> KernelCase:
    """Draw a result 1 or 2 wide, of windows times channels around multiples of 32."""
    window = pick.choice((1, 2, 2, 3, 4, 4, 5, 6, 8))
    product = pick.choice((32, 64, 96, 128, 160, 192, 256))
    channels = max(1, product // window + pick.choice((0, 0, 0, -1, 1)))
    stride = pick.choice((window, window, 1, 2, 3))
    width = window + pick.choice((0, 0, 0, 1, stride))
    high = pick.choice((1, 2, 3, 4))
    conv = Conv(
        batch=pick.choice((1, 2, 3, 8)),
        size=(high + pick.choice((0, 1, 2, 5)), width),
        channels=channels,
        window=(high, window),
        out=pick.choice((1, 4, 7, 8, 16, 32, 64)),
        strides=(pick.choice((1, 1, 2, high)), stride),
        padding=pick.choice(("VALID", "VALID", "SAME")),
    )
    return conv.case(pick.choice(("", "", "", *_GRADIENTS)))


def _patches(pick: random.Random) -> KernelCase:
    """Draw a patch embedding: stride as wide as the window."""
    window = pick.choice((2, 4, 4, 7, 8, 14, 16))
    conv = Conv(
        batch=pick.choice((1, 2, 4)),
        size=(window * pick.choice((1, 2, 3, 4)),) * 2,
        channels=pick.choice((1, 3, 4, 8, 12, 16, 20, 24, 28, 32)),
        window=(window, window),
        out=pick.choice((7, 8, 16, 32, 48, 96)),
        strides=(window, window),
        padding=pick.choice(("VALID", "SAME")),
    )
    return conv.case(pick.choice(("", "", *_GRADIENTS)))


def _deep(pick: random.Random) -> KernelCase:
    """Draw a 3-D convolution with depth taps that may see padding only."""
    depth = pick.choice((1, 2, 3, 4))
    conv = Conv(
        batch=pick.choice((1, 2, 4)),
        size=(depth, *(pick.choice((1, 2, 3, 5)),) * 2),
        channels=pick.choice((1, 3, 8, 16, 24, 32, 64)),
        window=(pick.choice((1, 2, 3, 4, 5)), *(pick.choice((1, 3)),) * 2),
        out=pick.choice((1, 4, 8, 16, 32, 64)),
        strides=(pick.choice((1, 2, 3)), *(pick.choice((1, 2)),) * 2),
        padding="SAME",
    )
    return conv.case(pick.choice(("", *_GRADIENTS)))


def _padding_only(pick: random.Random) -> KernelCase:
    """Draw a gradient on small maps, where taps see padding only."""
    side = pick.choice((1, 1, 2, 3, 4))
    window = pick.choice((2, 3, 3, 5, 7))
    conv = Conv(
        batch=pick.choice((1, 2, 8)),
        size=(side, pick.choice((side, 1, 2, 5))),
        channels=pick.choice((1, 3, 8, 16, 24, 32, 64, 100)),
        window=(window, pick.choice((window, window, 1, 3))),
        out=pick.choice((1, 4, 8, 16, 32, 64)),
        strides=(pick.choice((1, 2, 2, 3)),) * 2,
        padding="SAME",
    )
    return conv.case(
        pick.choice(("BackpropFilter", "BackpropFilter", "BackpropInput", ""))
    )


def _padding_only_depthwise(pick: random.Random) -> KernelCase:
    """Draw a depthwise convolution on small maps."""
    window = pick.choice((2, 3, 5, 7))
    conv = Conv(
        batch=pick.choice((1, 2, 8)),
        size=(pick.choice((1, 2, 3, 5, 8)), pick.choice((1, 2, 3, 5, 8))),
        channels=pick.choice((1, 3, 8, 16, 24, 32, 33, 64, 100)),
        window=(window, window),
        out=pick.choice((1, 1, 1, 2)),
        strides=(pick.choice((1, 2, 3)),) * 2,
        padding="SAME",
        depthwise=True,
    )
    return conv.case(pick.choice(("", *_GRADIENTS)))


def _time_series(pick: random.Random) -> KernelCase:
    """Draw a convolution of images of width 1, or of height 1."""
    window = pick.choice((1, 2, 3, 5, 7))
    size, taps = (pick.choice((7, 8, 16, 30)), 1), (window, 1)
    stride = (pick.choice((1, 1, 2)), 1)
    if pick.random() < 0.3:
        size, taps, stride = size[::-1], taps[::-1], stride[::-1]
    conv = Conv(
        batch=pick.choice((1, 2, 5)),
        size=size,
        channels=pick.choice((8, 16, 24, 31, 32, 33, 34, 40, 47, 48, 50, 64, 65, 100)),
        window=taps,
        out=pick.choice((1, 7, 8, 16, 24, 32, 33, 40, 48, 65)),
        strides=stride,
        padding=pick.choice(("SAME", "VALID")),
    )
    return conv.case(pick.choice(("", *_GRADIENTS)))


def _batch_pairs(batch: int) -> Sequence[tuple[Shape, Shape]]:
    """Return batches of two operands; the last pair corrupts memory in every type."""
    return (
        *(((batch,), ()), ((), (batch,)), ((batch,), (1,)), ((1,), (batch,))),
        *(((batch,), (batch,)), ((2, batch), (batch,)), ((2, batch), (1, batch))),
        *(((2, batch), ()), ((batch, 2), (batch, 1)), ((batch, 1), (1, 2))),
    )


def _single_rows(pick: random.Random) -> KernelCase:
    """Draw a batched product with dimensions of 1, broadcast or not."""
    batch = pick.choice((2, 3, 5, 8))
    left, right = pick.choice(_batch_pairs(batch))
    sizes = [pick.choice((2, 7, 8, 11, 16, 32, 40, 64, 100)) for _ in range(3)]
    for axis in pick.sample(range(3), pick.choice((1, 1, 2))):
        sizes[axis] = 1
    m, k, n = sizes
    ta, tb = pick.random() < 0.5, pick.random() < 0.5
    x = (*left, k, m) if ta else (*left, m, k)
    y = (*right, n, k) if tb else (*right, k, n)
    attributes = (("adj_x", ta), ("adj_y", tb))
    return KernelCase("BatchMatMulV2", (("x", x), ("y", y)), attributes)


def _one_matrix(pick: random.Random) -> KernelCase:
    """Draw a batch of few rows that one matrix multiplies, most often transposed."""
    left = pick.choice(((1,), (1, 1), (1, 1), (1, 4), (2, 3), (1, 1, 1)))
    right = pick.choice(((), (1,), (1, 1)))
    m, k = pick.randint(1, 40), pick.choice((1, 2, 3, 15, 64, 200))
    n = pick.choice((pick.randint(1, 80), pick.randint(49, 63), pick.randint(81, 300)))
    ta, tb = pick.random() < 0.3, pick.random() < 0.8
    x = (*left, k, m) if ta else (*left, m, k)
    y = (*right, n, k) if tb else (*right, k, n)
    attributes = (("adj_x", ta), ("adj_y", tb))
    return KernelCase("BatchMatMulV2", (("x", x), ("y", y)), attributes)


def _leaky(pick: random.Random) -> KernelCase:
    """Draw a convolution whose leak is not what TensorFlow takes it for."""
    out = pick.choice((1, 3, 8, 16))
    conv = Conv(2, (6, 6), pick.choice((1, 3, 8)), (3, 3), out, (1, 1), padding="SAME")
    last = pick.choice(("LeakyRelu", "LeakyRelu8th"))
    before = pick.choice((("BiasAdd",), ("BiasAdd", "Add"), ("Add",)))
    return with_steps(conv.case(), (2, 6, 6, out), (*before, last))


def _explicit(pick: random.Random) -> KernelCase:
    """Draw a convolution with explicit padding, forward and back."""
    conv = Conv(
        batch=pick.choice((1, 2, 14, 32)),
        size=(pick.choice((3, 8, 21)), pick.choice((3, 8, 21))),
        channels=pick.choice((2, 3, 8, 32)),
        window=(pick.choice((1, 2, 3)),) * 2,
        out=pick.choice((2, 3, 8, 32)),
        strides=(pick.choice((1, 2)),) * 2,
        padding="EXPLICIT",
        explicit=tuple(pick.choice((0, 0, 1, 2)) for _ in range(4)),
        depthwise=pick.random() < 0.2,
    )
    return conv.case(pick.choice(("", *_GRADIENTS)))


def _long_sums(pick: random.Random) -> KernelCase:
    """Draw a sum of many, which 16 bits lose."""
    long = pick.choice((200, 256, 300, 1000, 2048, 3000, 20_000))
    wide = pick.choice((1, 2, 3, 8, 33))
    kind = pick.randrange(6)
    if kind == 0:
        return KernelCase("BiasAddGrad", (("out_backprop", (long, wide)),))
    if kind == 1:
        return KernelCase("Cumsum", (("x", (wide, long)),), (("axis", 1),))
    if kind == 2:
        lengths = (("lengths", [200, 700]),)
        return KernelCase("segment_sum", (("data", (900, wide)),), lengths)
    if kind == 3:
        m, n = pick.choice((1, 2, 8)), pick.choice((1, 2, 8, 16))
        return KernelCase("MatMul", (("a", (m, long)), ("b", (long, n))))
    op = pick.choice(("Sum", "Mean"))
    axes = pick.choice(([0], [1], [0, 1]))
    shape = (long, wide) if pick.random() < 0.5 else (wide, long)
    return KernelCase(op, (("input", shape),), (("axis", axes),))


def _expansion(pick: random.Random) -> KernelCase:
    """Draw a filter gradient with few channels in, many out, and a small batch."""
    window = pick.choice((1, 1, 1, 2, 3))
    side = pick.choice((4, 7, 8, 14, 16))
    conv = Conv(
        batch=pick.choice((1, 2, 3, 4, 5, 6, 8, 12, 16, 32)),
        size=(side, side),
        channels=pick.choice((1, 3, 4, 8, 12, 16, 17, 24, 32, 64)),
        window=(window, window),
        out=pick.choice((32, 48, 64, 80, 96, 100, 128, 144, 192, 256)),
        strides=(pick.choice((1, 1, 1, 2)),) * 2,
        padding="SAME",
    )
    return conv.case(
        pick.choice(("BackpropFilter", "BackpropFilter", "BackpropInput", ""))
    )


_DIRECTED: Sequence[Callable[[random.Random], KernelCase]] = (
    *(_narrow_result, _patches, _deep, _padding_only, _padding_only_depthwise),
    *(_time_series, _single_rows, _explicit, _long_sums, _expansion),
    *(_narrow_result, _padding_only, _time_series, _single_rows, _leaky),
    _one_matrix,
)
