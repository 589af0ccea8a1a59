"""One process: build a model under a variant, run its first steps, then time as told.

Started by ``benchmarks.gpu.turns`` as one of `benchmarks.living`; its first line is
JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time

import keras
import tensorflow as tf

from benchmarks import variants
from benchmarks.gpu.figures import FirstSteps
from benchmarks.gpu.jobs import SIZES, VARIANTS, Variant, model_of
from benchmarks.living import only_answers, time_as_told
from benchmarks.steps import Step, build_model, step_of
from grappler_pass.planning.plan import Plan
from tf_amp.config import devices
from tf_amp.rewriting import host
from tf_amp.tools.bench.job import KERAS, OURS, TENSORFLOW

LOSSES = 8
_OTHER_TYPE = {"bfloat16": "float16", "float16": "bfloat16"}


def main() -> None:
    """Do what the command line names."""
    answers = only_answers()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--megabytes", type=int, help="of a GPU's memory")
    options = parser.parse_args()
    device = _share_device(options.megabytes)
    variant = VARIANTS[options.variant]
    dtype = _dtype_of(variant, device)
    _switch_on(variant, dtype)
    entry = model_of(options.model, options.size)
    # Keras scales by itself under its policy, and so does tf-amp.
    scales = variant.method == TENSORFLOW and dtype == "float16"
    model = build_model(entry, scales_loss=scales)
    step = step_of(model, entry, "train", jit_compile=options.compiled)
    said = _first_steps(model, step, device, dtype)
    print(json.dumps(dataclasses.asdict(said)), file=answers, flush=True)
    time_as_told(step, tf.test.experimental.sync_devices, answers)


def _first_steps(
    model: keras.Model, step: Step, device: devices.Device, dtype: str
) -> FirstSteps:
    """Trace, plan and compile a step; return what the first ones show."""
    plans: list[Plan | None] = []
    host.current().watchers.append(lambda rewrite: plans.append(rewrite.plan))

    def loss() -> float | None:
        # Keras returns the mean of all steps since.
        model.reset_metrics()
        value = float(step())
        return value if math.isfinite(value) else None

    begin = time.perf_counter()
    losses = [loss()]
    seconds = time.perf_counter() - begin
    losses += [loss() for _ in range(1, LOSSES)]
    predicted = [(p.seconds_before, p.seconds_after) for p in plans if p is not None]
    return FirstSteps(
        device=device.model,
        dtype=dtype,
        first_step_seconds=seconds,
        losses=tuple(losses),
        peak_bytes=_peak_bytes(step, device),
        # The step is the largest graph.
        predicted=max(predicted, default=None),
    )


def _share_device(megabytes: int | None) -> devices.Device:
    """Use the first GPU with so much of its memory, or the CPU; return the device."""
    gpus = tf.config.list_physical_devices("GPU")
    if megabytes and not gpus:
        sys.exit("TensorFlow sees no GPU; tensorflow[and-cuda] has what it needs")
    if gpus:
        tf.config.set_visible_devices(gpus[:1], "GPU")
        part = tf.config.LogicalDeviceConfiguration(memory_limit=megabytes or None)
        tf.config.set_logical_device_configuration(gpus[0], [part])
    return devices.device_of_type("GPU")


def _dtype_of(variant: Variant, device: devices.Device) -> str:
    if variant.method == TENSORFLOW:
        return "float16" if device.device_type == "GPU" else "bfloat16"
    if variant.method not in (KERAS, OURS):
        return "float32"
    first = device.low_dtype
    return _OTHER_TYPE[first] if variant.is_second else first


def _switch_on(variant: Variant, dtype: str) -> None:
    """Let this process run under a variant."""
    if variant.method == KERAS:
        keras.mixed_precision.set_global_policy(f"mixed_{dtype}")
    elif variant.method == OURS:
        # Other processes use the device while this one would compare steps.
        variants.switch_on(f"{OURS}:DTYPE={dtype}+TUNE=off")
    else:
        variants.switch_on(variant.method)


def _peak_bytes(step: Step, device: devices.Device) -> int:
    """Return the most memory that a step holds, once everything is compiled."""
    name = f"{device.device_type}:0"
    tf.config.experimental.reset_memory_stats(name)
    step()
    tf.test.experimental.sync_devices()
    peak: int = tf.config.experimental.get_memory_info(name)["peak"]
    return peak


if __name__ == "__main__":
    main()
