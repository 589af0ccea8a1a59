"""`tf-amp calibrate`: measure a device and keep the result in the user's cache."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_amp.commands._shared import DONE, FAILED, Options, progress_shown
from tf_amp.config.amp_config import CACHE, DEVICE_PROFILE, AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.report.files import check_writable
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.costs import DeviceProfile
    from tf_amp.config.devices import Device

SUMMARY = "measure the GPU, or the CPU where none is, and keep the result"
EXITS = {DONE: "measured and kept", FAILED: "the result cannot be kept"}
_SECONDS = 60.0
_TYPES = {
    "float32": "float32",
    "tf32": "float32 as TensorFloat-32",
    "float16": "float16",
    "bfloat16": "bfloat16",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    said = f"take no longer than this ({_SECONDS:g})"
    options.seconds("--seconds", said, _SECONDS)
    said = "such as CPU:0 or GPU:1; the GPU that plans are made for, if there is one"
    options.add("--device", metavar="NAME", help=said)
    options.path("--out", metavar="FILE", help="the cache by default")


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    path = options.out
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: {path} cannot be written: {error}.") from error
        check_writable("--out", path)
    check_tensorflow()
    return calibrate_device(options.device, options.seconds, options.out)


def calibrate_device(name: str | None, seconds: float, out: pathlib.Path | None) -> int:
    """Measure a device for `seconds`, keep the result, and return the exit code.

    Raises:
      ConfigError: there is no device of that name, or no folder to keep the result in.
      NotMeasurableError: the device does not answer, has no memory left, or what it
        takes could not be told from noise.
    """
    from grappler_pass.costs import GpuKey, calibrated_path, keep_profile, profile_for
    from tf_amp.calibrate.gpu import calibrate_gpu
    from tf_amp.calibrate.profile import calibrate
    from tf_amp.config import devices

    place, device = _named_device(name)
    key = devices.key_of(device)
    config = AmpConfig.from_env()
    path = out
    if path is None:
        if config.cache_dir is None:
            raise ConfigError(
                f"There is no folder to keep the result in; --out or {CACHE} names one."
            )
        path = calibrated_path(config.cache_dir, key)
    before = profile_for(None, key, config.cache_dir)
    with progress_shown():
        if isinstance(key, GpuKey):
            profile = calibrate_gpu(seconds, key=key, device=f"/{place}")
        else:
            profile = calibrate(seconds, key=key)
    if keep_profile(profile, path) is None:
        return FAILED
    if isinstance(key, GpuKey):
        print(f"{key}: kept in {path}")
    else:
        print(f"{key.model}, {key.threads} threads: kept in {path}")
    print("\n".join(_changes(before, profile)))
    if isinstance(key, GpuKey):
        print("`tf-amp calibrate --device CPU:0` measures the CPU.")
    if out is not None:
        print(f"{DEVICE_PROFILE}={out} plans by it.")
    elif config.device_profile is not None:
        print(f"{DEVICE_PROFILE}={config.device_profile} goes before it; unset that.")
    else:
        print("Programs that start from now on plan by it.")
    return DONE


def _named_device(name: str | None) -> tuple[str, Device]:
    """Return the device of a name such as "GPU:0", with its name.

    By default that is the one by which plans are made.
    """
    from tf_amp.config import devices

    cpu, *gpus = devices.present_devices()
    named = {"CPU:0": cpu, **{f"GPU:{i}": gpu for i, gpu in enumerate(gpus)}}
    if name is None:
        chosen = devices.device_of_type("GPU")
        name = next(each for each, device in named.items() if device == chosen)
    elif name.upper() not in named:
        raise ConfigError(
            f"--device: received {name!r}; TensorFlow sees {', '.join(named)}."
        )
    return name.upper(), named[name.upper()]


def _changes(before: DeviceProfile, after: DeviceProfile) -> Iterator[str]:
    """Yield what a profile says of a device, and what the one so far has said."""
    date = before.provenance.get("date")
    is_own = before.name == after.name
    other = f"measured on {date}" if is_own else f"that of {before.name}"
    count = len(after.data["classes"])
    yield f"{count} kinds of operations were measured; the profile so far was {other}:"
    old, new = before.roofline, after.roofline
    for dtype, words in _TYPES.items():
        rates = (old.matrix_flops.get(dtype), new.matrix_flops.get(dtype))
        if rates[1] is not None:
            shown = " -> ".join(map(_giga, rates))
            yield f"  large products in {words}: {shown} GFLOP/s"
    rates = (old.bytes_per_second.get("float32"), new.bytes_per_second.get("float32"))
    yield f"  memory: {' -> '.join(map(_giga, rates))} GB/s"
    if new.dispatch_seconds:
        starts = (old.dispatch_seconds, new.dispatch_seconds)
        shown = " -> ".join(f"{seconds * 1e6:.1f}" for seconds in starts)
        yield f"  start of an operation by the host: {shown} microseconds"
    if after.kind == "gpu":
        spread = after.provenance["spread"]
        yield (
            "All was measured once; more --seconds measure it again."
            if spread is None
            else f"Measured again, half of all took the same within {spread:.0%}."
        )


def _giga(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate / 1e9:,.1f}"
