"""Which profile suits a device: a measured one of its own, else the nearest shipped."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from absl import logging

from grappler_pass.costs.device_key import DeviceKey
from grappler_pass.costs.device_profile import DeviceProfile, ProfileError

# The instruction sets that decide which 16-bit kernels a CPU runs.
DECISIVE_FLAGS = frozenset(
    """
    avx avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_fp16 avx_ne_convert asimd bf16
    sve
    """.split()
)


def choose_profile(
    cpu_flags: frozenset[str],
    onednn: bool,
    gpu: str | None = None,
    capability: tuple[int, int] | None = None,
    cpu_model: str = "",
) -> str:
    """Return the name of the shipped profile nearest to a device.

    Args:
        cpu_flags: as in /proc/cpuinfo.
        onednn: whether TensorFlow's oneDNN kernels are on: without them 16 bits are
            emulated whatever the CPU has.
        gpu: its name, or None to plan for the CPU.
        capability: compute capability of that GPU.
        cpu_model: as in /proc/cpuinfo. Products by avx512_bf16 take Intel's CPUs
            longer than those in float32, and AMD's half the time: both measured.
    """
    if gpu is not None and capability is not None:
        return _gpu_profile(gpu, capability)
    if not onednn:
        return "cpu-generic"
    if "amx_bf16" in cpu_flags:
        return "cpu-amx-bf16"
    if "avx512_bf16" in cpu_flags:
        intel = cpu_model.startswith("Intel")
        return "cpu-intel-avx512-bf16" if intel else "cpu-avx512-bf16"
    return "cpu-generic"


def _gpu_profile(gpu: str, capability: tuple[int, int]) -> str:
    if capability < (7, 0):
        # No tensor cores: the prices under which nothing is worth converting.
        return "cpu-generic"
    if capability == (7, 5):
        return "t4"
    if capability < (8, 0):
        return "v100"
    if capability < (9, 0):
        return "a100"
    return "h200" if "H200" in gpu.upper() else "h100"


def calibrated_path(cache_folder: Path, key: DeviceKey) -> Path:
    """Return where the measured profile of the device with ``key`` is kept."""
    text = json.dumps(key.to_json(), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_folder / "profiles" / f"{digest}.json"


def calibrated_profile(cache_folder: Path, key: DeviceKey) -> DeviceProfile | None:
    """Return the measured profile of the device with ``key``, if one is kept.

    A file that is no profile is set aside as ``.broken``, with a warning.
    """
    path = calibrated_path(cache_folder, key)
    try:
        if not path.is_file():
            return None
        profile = DeviceProfile.load(path)
    except OSError as error:
        logging.warning("cannot look into the cache folder %s: %s", path.parent, error)
        return None
    except ProfileError as error:
        _set_aside(path, error)
        return None
    return profile if profile.device == key else None


def profile_for(
    requested: str | None,
    key: DeviceKey,
    cache_folder: Path | None,
    gpu: str | None = None,
    capability: tuple[int, int] | None = None,
) -> DeviceProfile:
    """Return the requested profile, else the measured one, else the nearest shipped.

    Raises:
        ProfileError: ``requested`` names no profile.
    """
    if requested:
        return DeviceProfile.load(requested)
    if gpu is None and cache_folder is not None:
        measured = calibrated_profile(cache_folder, key)
        if measured is not None:
            return measured
    nearest = choose_profile(key.flags, key.onednn, gpu, capability, key.model)
    return DeviceProfile.load(nearest)


def keep_profile(profile: DeviceProfile, path: Path) -> Path | None:
    """Save a measured profile; on a full or read-only disk warn and return None."""
    try:
        profile.save(path)
    except OSError as error:
        logging.warning(
            "the profile was not kept: %s cannot be written: %s", path, error
        )
        return None
    return path


def _set_aside(path: Path, error: ProfileError) -> None:
    aside = path.with_suffix(".broken")
    try:
        path.replace(aside)
    except OSError:
        aside = path
    logging.warning("ignoring a broken device profile, now at %s: %s", aside, error)
