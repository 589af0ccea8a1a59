"""`tf-amp calibrate`: measure this device and keep the result in the user's cache."""

from __future__ import annotations

import pathlib

from tf_amp.config import AmpConfig
from tf_amp.devices import cpu_key


def main(seconds: float, out: pathlib.Path | None) -> int:
    """Measure for at most `seconds`; return 1 if the result could not be kept."""
    from grappler_pass.costs import calibrated_path, keep_profile
    from tf_amp.calibration import calibrate

    key = cpu_key()
    cache_dir = AmpConfig.from_env().cache_dir
    if out is None and cache_dir is not None:
        out = calibrated_path(cache_dir, key)
    profile = calibrate(seconds, progress=True, key=key)
    if out is None or keep_profile(profile, out) is None:
        return 1
    print(f"{key.model}, {key.threads} threads: kept in {out}")
    return 0
