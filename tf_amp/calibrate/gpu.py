"""The profile of a GPU, measured: grids of its ops, and the rates of its roofline.

Products, additions, casts and what attention and convolutions take are grids, as on a
CPU. Everything else, and what XLA makes of a graph, is priced by the rates that these
reached. What cannot be measured from outside, such as what a tile of a product costs,
is that of the nearest shipped GPU, in proportion to the rates.

float32 stands for the products in force under the device's key: with TensorFloat-32 or
without. The roofline has the rates of both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.costs import DeviceProfile, GpuKey, OpCall, TensorSpec, nearest_to
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.times import Roofline
from tf_amp._tensorflow_private.graphs import multiprocessors
from tf_amp.calibrate.cases import Case, Sizes, all_cases, points_of, raw_op
from tf_amp.calibrate.profile import (
    call_seconds,
    classes_from,
    measure_cases,
    provenance,
    roofline_from,
)
from tf_amp.calibrate.readings import (
    LATER_TURNS,
    Place,
    Rounds,
    check_answers,
    measure_into,
    medians_of,
    reading_of,
    timing_run,
)
from tf_amp.errors import NotMeasurableError
from tf_amp.run.graph_run import elapsed, most_bytes

# Large enough to fill it, and so few that a minute is enough.
SIZES = Sizes(
    elements=(1 << 14, 1 << 18, 1 << 21, 1 << 24),
    matrix=(64, 256, 1024, 4096),
    batch=(16, 256),
    batched_matrix=(64, 512),
    pixels=(4096, 65536),
    channels=(64, 256),
    rows=(1024, 16384, 65536),
    columns=(64, 512, 4096),
    most_elements=1 << 26,
    most_flops=2e11,
)
DTYPES = ("float32", "float16", "bfloat16")
# What is measured, the most decisive first. Other layouts of products take the same on
# a GPU. What reads indices is left out: they are copied from the host in each run.
_CLASSES = """
    matmul AddV2 Cast batch_matmul Softmax conv.forward.9.s1 conv.input_gradient.9.s1
    conv.filter_gradient.9.s1 FusedBatchNorm.training FusedBatchNormGrad.training Relu
    ReluGrad Mul Tanh BiasAdd BiasAddGrad conv.forward.1.s1 conv.input_gradient.1.s1
    conv.filter_gradient.1.s1 Sum.inner Sum.outer Exp Sigmoid Rsqrt Square RealDiv
    TanhGrad SelectV2 Transpose LogSoftmax conv.forward.9.s2 conv.input_gradient.9.s2
    conv.filter_gradient.9.s2 FusedBatchNorm.inference Erf SquaredDifference ConcatV2
""".split()
# Small ops in a row, each of which reads what the one before has written.
_STARTS = 256
_TIMES = 20
# The sides that products in front of a chain may have. One takes so much longer than
# its host to start it that a few are enough.
_SIDES, _LEAST_STARTS = (128, 256, 512, 1024, 2048, 4096, 8192), 4.0
# How often the largest product is measured in each kind of float32.
_RATE_ROUNDS = 3
# A set of inputs, and as much for results and what libraries work with.
_COPIES = 4


def calibrate_gpu(
    seconds: float = 60.0,
    *,
    key: GpuKey,
    device: str = "/GPU:0",
    sizes: Sizes = SIZES,
    dtypes: Sequence[str] = DTYPES,
) -> DeviceProfile:
    """Measure a GPU and return its profile.

    Args:
        seconds: time for all of it. Products and additions are measured once, whatever
            that takes: the roofline is made of them.
        key: of this device, by which the profile is found again.
        device: as TensorFlow names it. Where a CPU is named it is measured as if it
            were the GPU, which shows that this works.
        sizes: how densely each class is measured.
        dtypes: to measure; float32 must be among them.

    Raises:
        NotMeasurableError: the device does not answer, has no memory left, or what it
            takes is no more than noise.
    """
    end = time.perf_counter() + seconds
    check_answers(Place(device))
    device_type = device.strip("/").partition(":")[0]
    room = most_bytes(device_type) // (4 * _COPIES)
    sizes = sizes._replace(most_elements=min(sizes.most_elements, room))
    chosen = [case for case in all_cases(sizes) if case.op_class in _CLASSES]
    cases = sorted(chosen, key=lambda case: _CLASSES.index(case.op_class))
    starting = call_seconds(device)
    place = place_on(device, start_seconds(device))
    rates = product_rates(cases[0], place, has_tf32=key.tf32 is not None)
    rounds = measure_cases(cases, dtypes, end - time.perf_counter(), place)
    classes = classes_from(cases, medians_of(rounds))
    nearest = DeviceProfile.load(nearest_to(key)).roofline
    roofline = roofline_from(classes, usual_elements=sizes.elements[-1])
    in_force = "tf32" if key.tf32 else "float32"
    whole = {
        **roofline,
        **_rates(roofline, rates, nearest),
        "dispatch_seconds": place.start_seconds,
    }
    data: dict[str, Any] = {
        "format": 1,
        "name": "calibrated",
        "kind": "gpu",
        "description": f"{key.model}, measured",
        "provenance": provenance(str(key), seconds, rounds),
        "device": str(key),
        "roofline": whole,
        "classes": classes,
        "call_seconds": starting,
    }
    if key.capability is not None:
        data["capability"] = "{}.{}".format(*key.capability)
    profile = DeviceProfile.from_json(data)
    slower = _convolution_slowdown(cases, profile, rates[in_force])
    whole["slowdown"] = {"conv": slower, **whole["slowdown"]}
    return DeviceProfile.from_json(data)


def start_seconds(device: str) -> float:
    """Return what the host takes to start an op, the smallest that there is.

    On a GPU, where the op itself takes less.
    """
    run = timing_run()
    value = last = run.hold(np.ones((16,), np.float32), device)
    with run.graph.as_default(), run.graph.device(device):
        for _ in range(_STARTS):
            last = tf.raw_ops.AddV2(x=last, y=value)
    with run:
        chain, start = run.callable(last.op), run.callable(value.op)
        for call in (chain, start) * 2:
            call()
        pairs = [(elapsed(chain), elapsed(start)) for _ in range(_TIMES)]
    difference = statistics.median(whole - base for whole, base in pairs)
    if difference <= 0.0:
        raise NotMeasurableError(
            "Nothing is kept: what it takes to start an op could not be told from "
            "noise. Let the machine do nothing else."
        )
    return float(f"{difference / _STARTS:.3g}")


def place_on(device: str, start: float) -> Place:
    """Return where and how ops of a GPU are timed, by what its host takes to start one.

    This also brings a GPU that was idle to its usual clock.
    """
    place = Place(device, longest_chain=64, flops=2e13, elements=1e11)
    product = raw_op("MatMul")
    case = Case("matmul", {}, lambda point: (point, point), product)
    for side in _SIDES:
        point = (side, side)
        reading = reading_of(product, case, point, "float32", LATER_TURNS, place)
        if reading is not None and reading.seconds >= _LEAST_STARTS * start:
            return place._replace(
                start_seconds=start, front_side=side, front_seconds=reading.seconds
            )
    raise NotMeasurableError(
        f"Nothing is kept: products of {_SIDES[-1]} x {_SIDES[-1]} matrices take no "
        f"longer than the host takes to start {_LEAST_STARTS:.0f} ops ("
        f"{start * 1e6:.0f} us each). Let the machine do nothing else."
    )


def product_rates(product: Case, place: Place, *, has_tf32: bool) -> dict[str, float]:
    """Return flops per second of the largest float32 product, and with TensorFloat-32.

    Raises:
        NotMeasurableError: it takes no more than noise.
    """
    point = max(points_of(product), key=product.flops)
    rates = {}
    for name in ("float32", "tf32") if has_tf32 else ("float32",):
        with _tensor_float_32(name == "tf32"):
            found: Rounds = {}
            for _ in range(_RATE_ROUNDS):
                measure_into(found, product, point, ("float32",), LATER_TURNS, place)
        if not found:
            raise NotMeasurableError(
                f"Nothing is kept: products in {name} could not be told from noise. "
                "Let the machine do nothing else."
            )
        (seconds,) = medians_of(found).values()
        rates[name] = float(f"{product.flops(point) / seconds:.3g}")
    return rates


@contextlib.contextmanager
def _tensor_float_32(is_on: bool) -> Iterator[None]:
    switch = tf.config.experimental
    before = switch.tensor_float_32_execution_enabled()
    switch.enable_tensor_float_32_execution(is_on)
    try:
        yield
    finally:
        switch.enable_tensor_float_32_execution(before)


def _rates(
    measured: Mapping[str, Any], products: Mapping[str, float], nearest: Roofline
) -> dict[str, Any]:
    """Return the rates of a roofline that are not those of a grid.

    Args:
      measured: the roofline of the grids alone.
      products: flops per second of float32 products by kind.
      nearest: the roofline of the nearest shipped GPU.
    """
    # The units that multiply float32 exactly compute all else, in any type.
    exact = products["float32"]
    matrix = {**measured["matrix_flops"], **products}
    vector = dict.fromkeys(matrix, exact)
    # Kernels of TensorFlow in 16 bits do not reach the bandwidth of those in float32,
    # which kernels that XLA makes do.
    bandwidths = measured["bytes_per_second"]
    bandwidth = bandwidths["float32"]
    slower = {
        dtype: float(f"{max(bandwidth / reached, 1.0):.3g}")
        for dtype, reached in bandwidths.items()
    }
    faster = bandwidth / nearest.bytes_per_second["float32"]
    rates: dict[str, Any] = {
        "matrix_flops": matrix,
        "vector_flops": vector,
        "bytes_per_second": dict.fromkeys(matrix, bandwidth),
        # The first that an op begins with counts.
        "slowdown": {"matmul": {}, "batch_matmul": {}, "": slower},
    }
    units = nearest.multiprocessors
    if units is None:
        return rates

    def share(dtype: str) -> float:
        whole = nearest.matrix_flops.get(dtype, nearest.matrix_flops["float32"])
        return units.unaligned_flops[dtype] / whole

    unaligned = {d: matrix[d] * share(d) for d in units.unaligned_flops if d in matrix}
    rates["multiprocessors"] = {
        **dataclasses.asdict(units),
        "count": multiprocessors() or units.count,
        "cache_bytes_per_second": units.cache_bytes_per_second * faster,
        "unaligned_flops": unaligned,
        "direct_flops": units.direct_flops * exact / nearest.vector_flops["float32"],
    }
    return rates


def _convolution_slowdown(
    cases: Sequence[Case], profile: DeviceProfile, float32_flops: float
) -> dict[str, float]:
    """Return by how much convolutions miss the roofline, by type; {} if not measured.

    By the largest one; others than those of the grids are priced so.

    Args:
      cases: that were measured.
      profile: made of them.
      float32_flops: the rate of float32 products in force.
    """
    named = {case.op_class: case for case in cases}
    case = named["conv.forward.9.s1"]
    point = max(points_of(case), key=case.flops)
    image, kernel = case.shapes(point)
    specs = [
        TensorSpec(shape, "float32")
        for shape in (image, kernel, (*image[:-1], kernel[-1]))
    ]
    attrs = {"strides": (1, 1, 1, 1), "padding": "SAME", "data_format": "NHWC"}
    call = OpCall("Conv2D", attrs, tuple(specs[:2]), tuple(specs[2:]))
    flops = {**profile.roofline.matrix_flops, "float32": float32_flops}
    flops.pop("tf32", None)
    roofline = dataclasses.replace(profile.roofline, matrix_flops=flops)
    slower = {}
    for dtype in flops:
        grid = profile.grid(case.op_class, dtype)
        if grid is not None:
            (work,) = works_of(call, dtype)
            ratio = grid.seconds(point) / roofline.seconds(work, dtype)
            slower[dtype] = float(f"{max(ratio, 1.0):.3g}")
    if "float32" in slower:
        slower["tf32"] = slower["float32"]
    return slower
