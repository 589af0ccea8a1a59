"""Measure the present device and keep what was measured as its profile.

What a class is, and its sizes: ``cases``. What is measured in the time given, and how:
``rounds``.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.costs import DeviceKey, DeviceProfile, nearest_to_cpu
from tf_amp.measuring.device_profile import elementwise, movement, products, rows
from tf_amp.measuring.device_profile.assembling import (
    Measurements,
    classes_from,
    roofline_from,
)
from tf_amp.measuring.device_profile.cases import COARSE, Case, Sizes
from tf_amp.measuring.device_profile.rounds import measure_cases
from tf_amp.measuring.op_timing import elapsed

# The function whose start is timed.
_WIDTH = 32
_LAYERS = 4
_CALLS = 200


def calibrate(
    seconds: float = 60.0,
    *,
    key: DeviceKey,
    sizes: Sizes = COARSE,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
) -> DeviceProfile:
    """Measure this CPU and return its profile.

    Args:
        seconds: time for all of it; classes that do not fit are taken from the shipped
            profile of the nearest device. Products and additions are measured once,
            whatever that takes: the roofline is made of them.
        key: of this device, by which the profile is found again.
        sizes: how densely each class is measured.
        dtypes: to measure; float32 must be among them.
    """
    end = time.perf_counter() + seconds
    cases = all_cases(sizes)
    starting = call_seconds()
    measured = measure_cases(cases, dtypes, end - time.perf_counter())
    data = _profile(cases, measured, key, seconds)
    return DeviceProfile.from_json({**data, "call_seconds": starting})


def call_seconds() -> float:
    """Return the seconds from the call of a small function until its result is there.

    It is a network of a few layers: handles of weights are passed to a call, and the
    first op that uses threads wakes them up. The median counts: threads wake up late in
    an undisturbed call, too.
    """
    with tf.device("/CPU:0"):
        layers = [
            (tf.Variable(tf.ones((_WIDTH, _WIDTH))), tf.Variable(tf.ones((_WIDTH,))))
            for _ in range(_LAYERS)
        ]
        inputs = tf.ones((_WIDTH, _WIDTH))

    def apply(values: tf.Tensor) -> tf.Tensor:
        for weight, bias in layers:
            values = tf.nn.relu(values @ weight + bias)
        return values

    function = tf.function(apply, autograph=False)

    def call() -> None:
        function(inputs).numpy()

    for _ in range(_CALLS // 10):
        call()
    return statistics.median(elapsed(call) for _ in range(_CALLS))


def all_cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return every class to measure, the most decisive first."""
    return (
        *products.matmuls(sizes),
        *elementwise.casts(sizes),
        *elementwise.arithmetic(sizes),
        *products.convolutions(sizes),
        *rows.by_rows(sizes),
        *rows.reductions(sizes),
        *products.batch_matmuls(sizes),
        *products.depthwise(sizes),
        *products.fused(sizes),
        *movement.moves(sizes),
        *movement.pools(sizes),
    )


def _profile(
    cases: Sequence[Case], measured: Measurements, key: DeviceKey, seconds: float
) -> dict[str, Any]:
    classes = classes_from(cases, measured)
    nearest = nearest_to_cpu(key)
    threads = f"{key.threads} threads, oneDNN {'on' if key.onednn else 'off'}"
    return {
        "format": 1,
        "name": "calibrated",
        "kind": "cpu",
        "description": f"{key.model}, {threads}, measured",
        "provenance": {
            "date": datetime.date.today().isoformat(),
            "device": f"{key.model}, {threads}",
            "how": f"tf-amp calibrate, {seconds:.0f} seconds",
            "tensorflow": tf.__version__,
        },
        "device": str(key),
        "extends": nearest,
        "scale": _scale(measured, DeviceProfile.load(nearest)),
        "roofline": roofline_from(classes),
        "classes": classes,
    }


def _scale(measured: Measurements, other: DeviceProfile) -> float:
    """Return how many times as long this device takes as the ``other``."""
    ratios = [
        seconds / grid.seconds(point)
        for (op_class, dtype, point), seconds in measured.items()
        if (grid := other.grid(op_class, dtype)) is not None
    ]
    return statistics.median(ratios) if ratios else 1.0
