"""`tf-amp calibrate`: measure this CPU and keep the result in the user's cache."""

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

SUMMARY = "measure this CPU and keep the result"
EXITS = {DONE: "measured and kept", FAILED: "the result cannot be kept"}
_SECONDS = 60.0


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    said = f"take no longer than this ({_SECONDS:g})"
    options.seconds("--seconds", said, _SECONDS)
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
    return calibrate_this_cpu(options.seconds, options.out)


def calibrate_this_cpu(seconds: float, out: pathlib.Path | None) -> int:
    """Measure for `seconds`, keep the result, and return the exit code."""
    from grappler_pass.costs import calibrated_path, keep_profile, profile_for
    from tf_amp.calibrate import profile as profiles
    from tf_amp.config import devices

    key = devices.cpu_key()
    config = AmpConfig.from_env()
    path = out
    if path is None:
        if config.cache_dir is None:
            raise ConfigError(
                f"There is no folder to keep the result in; --out or {CACHE} names one."
            )
        path = calibrated_path(config.cache_dir, key)
    gpus = [d.model for d in devices.present_devices() if d.device_type == "GPU"]
    if gpus:
        print(f"Only the CPU is measured; shipped profiles stay for {', '.join(gpus)}.")
    before = profile_for(None, key, config.cache_dir)
    with progress_shown():
        profile = profiles.calibrate(seconds, key=key)
    if keep_profile(profile, path) is None:
        return FAILED
    print(f"{key.model}, {key.threads} threads: kept in {path}")
    print("\n".join(_changes(before, profile)))
    if out is not None:
        print(f"{DEVICE_PROFILE}={out} plans by it.")
    elif config.device_profile is not None:
        print(f"{DEVICE_PROFILE}={config.device_profile} goes before it; unset that.")
    else:
        print("Programs that start from now on plan by it.")
    return DONE


def _changes(before: DeviceProfile, after: DeviceProfile) -> Iterator[str]:
    """Yield what a profile says of the CPU, and what the one so far has said."""
    date = before.provenance.get("date")
    is_own = before.name == after.name
    other = f"measured on {date}" if is_own else f"that of {before.name}"
    count = len(after.data["classes"])
    yield f"{count} kinds of operations were measured; the profile so far was {other}:"
    old, new = before.roofline, after.roofline
    for dtype in ("float32", "bfloat16"):
        rates = (old.matrix_flops.get(dtype), new.matrix_flops.get(dtype))
        yield f"  large products in {dtype}: {' -> '.join(map(_giga, rates))} GFLOP/s"
    rates = (old.bytes_per_second.get("float32"), new.bytes_per_second.get("float32"))
    yield f"  memory: {' -> '.join(map(_giga, rates))} GB/s"


def _giga(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate / 1e9:,.1f}"
