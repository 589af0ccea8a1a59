"""`tf-amp calibrate`: measure this CPU and keep the result in the user's cache."""

from __future__ import annotations

import argparse
import pathlib

from tf_amp.commands.shared import printing
from tf_amp.commands.shared.arguments import seconds_from_text
from tf_amp.commands.shared.exit_codes import DONE, FAILED
from tf_amp.config.amp_config import CACHE, AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.whole_files import check_writable

SUMMARY = "measure this CPU and keep the result"
EXITS = {DONE: "measured and kept", FAILED: "the result cannot be kept"}
_SECONDS = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    add = parser.add_argument
    add(
        "--seconds",
        type=seconds_from_text,
        default=_SECONDS,
        metavar="N",
        help=f"take no longer than this ({_SECONDS:g})",
    )
    add("--out", type=pathlib.Path, metavar="FILE", help="the cache by default")


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if options.out is not None:
        _check_out(options.out)
    check_tensorflow()
    return calibrate_this_cpu(options.seconds, options.out)


def _check_out(path: pathlib.Path) -> None:
    """Refuse a file that could not be written; make its folder, as for the cache."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: {path} cannot be written: {error}.") from error
    check_writable("--out", path)


def calibrate_this_cpu(seconds: float, out: pathlib.Path | None) -> int:
    """Measure for `seconds`, keep the result, and return the exit code."""
    from grappler_pass.costs import calibrated_path, keep_profile
    from tf_amp.config import devices
    from tf_amp.measuring.device_profile import calibrate

    key = devices.cpu_key()
    cache_dir = AmpConfig.from_env().cache_dir
    if out is None:
        if cache_dir is None:
            raise ConfigError(
                f"There is no folder to keep the result in; --out or {CACHE} names one."
            )
        out = calibrated_path(cache_dir, key)
    gpus = [d.model for d in devices.present_devices() if d.device_type == "GPU"]
    if gpus:
        print(f"Only the CPU is measured; shipped profiles stay for {', '.join(gpus)}.")
    with printing.progress_shown():
        profile = calibrate(seconds, key=key)
    if keep_profile(profile, out) is None:
        return FAILED
    print(f"{key.model}, {key.threads} threads: kept in {out}")
    return DONE
