"""Cases near the conditions under which kernels were found wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.kernel_cases import KernelCase, Shape
from tests.kernel_draws import Conv, with_steps

_GRADIENTS = ("BackpropInput", "BackpropFilter")


def directed(seed: int) -> KernelCase:
    """Return the directed case of a seed."""
    pick = random.Random(seed)
    return _FAMILIES[seed % len(_FAMILIES)](pick)


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
    return conv.case(pick.choice(("", "BackpropInput", "BackpropFilter")))


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
    return conv.case(pick.choice(("", "BackpropInput", "BackpropFilter")))


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


_FAMILIES: Sequence[Callable[[random.Random], KernelCase]] = (
    *(_narrow_result, _patches, _deep, _padding_only, _padding_only_depthwise),
    *(_time_series, _single_rows, _explicit, _long_sums, _expansion),
    *(_narrow_result, _padding_only, _time_series, _single_rows, _leaky),
)
