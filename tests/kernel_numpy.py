"""Convolutions and their gradients in NumPy, tap by tap: channels last, any rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tests.kernel_calls import KernelCase, Shape

_Tap = tuple[Shape, tuple[slice, ...]]


def convolved(case: KernelCase, operands: Mapping[str, Any]) -> np.ndarray | None:
    """Return the result in float64; None where the op is no convolution."""
    attributes = dict(case.attributes)
    if "Conv" not in case.op or attributes.get("data_format", "N")[1:2] == "C":
        return None
    arrays = {n: np.asarray(v, np.float64) for n, v in operands.items()}
    if "BackpropInput" in case.op:
        return _input_gradient(case, attributes, **arrays)
    if "BackpropFilter" in case.op:
        return _filter_gradient(case, attributes, **arrays)
    return _forward(case, attributes, **arrays)


def _forward(
    case: KernelCase, attributes: dict[str, Any], input: np.ndarray, filter: np.ndarray
) -> np.ndarray:
    padded, sizes = _padded(input, filter.shape, attributes)
    groups, window = _groups(case, filter, input.shape[-1])
    result = np.zeros((len(input), *sizes, groups, window.shape[-1]))
    for tap, places in _taps(filter.shape, sizes, attributes):
        seen = padded[places]
        seen = seen.reshape(*seen.shape[:-1], groups, 1, -1)
        result += (seen @ window[tap])[..., 0, :]
    return result.reshape(*result.shape[:-2], -1)


def _input_gradient(
    case: KernelCase,
    attributes: dict[str, Any],
    filter: np.ndarray,
    out_backprop: np.ndarray,
) -> np.ndarray:
    shape = attributes["input_sizes"]
    padded, sizes = _padded(np.zeros(shape), filter.shape, attributes)
    groups, window = _groups(case, filter, shape[-1])
    slopes = out_backprop.reshape(*out_backprop.shape[:-1], groups, 1, -1)
    for tap, places in _taps(filter.shape, sizes, attributes):
        part = slopes @ window[tap].swapaxes(-1, -2)
        padded[places] += part.reshape(*part.shape[:-3], -1)
    before = [pair[0] for pair in padded_sizes(shape, filter.shape, attributes)[0]]
    inner = [slice(b, b + n) for b, n in zip(before, shape[1:-1], strict=True)]
    return padded[(slice(None), *inner)]


def _filter_gradient(
    case: KernelCase,
    attributes: dict[str, Any],
    input: np.ndarray,
    out_backprop: np.ndarray,
) -> np.ndarray:
    shape = tuple(attributes["filter_sizes"])
    padded, sizes = _padded(input, shape, attributes)
    groups, _ = _groups(case, np.zeros(shape), input.shape[-1])
    slopes = out_backprop.reshape(-1, groups, out_backprop.shape[-1] // groups)
    result = np.zeros(shape)
    for tap, places in _taps(shape, sizes, attributes):
        seen = padded[places].reshape(len(slopes), groups, -1)
        part = seen.transpose(1, 2, 0) @ slopes.transpose(1, 0, 2)
        if "Depthwise" not in case.op:
            # The filter's last axis runs over groups first.
            part = part.transpose(1, 0, 2)
        result[tap] = part.reshape(shape[-2:])
    return result


def _groups(
    case: KernelCase, filter: np.ndarray, channels: int
) -> tuple[int, np.ndarray]:
    """Return how many groups, and the filter as [*window, groups, in, out of each]."""
    *window, deep, out = filter.shape
    if "Depthwise" in case.op:
        return channels, filter.reshape(*window, channels, 1, out)
    groups = channels // deep
    split = filter.reshape(*window, deep, groups, out // groups)
    return groups, split.swapaxes(-3, -2)


def _padded(
    value: np.ndarray, window: Shape, attributes: Mapping[str, Any]
) -> tuple[np.ndarray, Shape]:
    """Return padded images, and the result's size."""
    pads, sizes = padded_sizes(value.shape, window, attributes)
    return np.pad(value, [(0, 0), *pads, (0, 0)]), sizes


def padded_sizes(
    shape: Shape, window: Shape, attributes: Mapping[str, Any]
) -> tuple[list[tuple[int, int]], Shape]:
    """Return padding and the result's size by axis: none where no window fits in."""
    pads, sizes = [], []
    for axis in range(1, len(shape) - 1):
        stride, dilation = _steps(attributes, axis)
        reach = (window[axis - 1] - 1) * dilation + 1
        pair = (0, 0)
        if attributes["padding"] == "SAME":
            count = -(-shape[axis] // stride)
            both = max((count - 1) * stride + reach - shape[axis], 0)
            pair = (both // 2, both - both // 2)
        elif attributes["padding"] == "EXPLICIT":
            pair = tuple(attributes["explicit_paddings"][2 * axis : 2 * axis + 2])
        pads.append(pair)
        sizes.append(max((shape[axis] + sum(pair) - reach) // stride + 1, 0))
    return pads, tuple(sizes)


def _taps(window: Shape, sizes: Shape, attributes: Mapping[str, Any]) -> Iterator[_Tap]:
    """Yield each tap of the window with what it sees of padded images."""
    for tap in itertools.product(*(range(n) for n in window[:-2])):
        places = [slice(None)]
        for axis, at in enumerate(tap, 1):
            stride, dilation = _steps(attributes, axis)
            first = at * dilation
            last = first + (sizes[axis - 1] - 1) * stride + 1
            places.append(slice(first, last, stride))
        yield tap, tuple(places)


def _steps(attributes: Mapping[str, Any], axis: int) -> tuple[int, int]:
    dilations = attributes.get("dilations")
    return attributes["strides"][axis], dilations[axis] if dilations else 1
