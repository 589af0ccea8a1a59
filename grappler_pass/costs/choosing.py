"""Which profile suits a device: a measured one of its own, else the nearest shipped."""

from __future__ import annotations

import hashlib
from pathlib import Path

from absl import logging

from grappler_pass.costs.device_profile import DeviceKey, DeviceProfile, ProfileError

# The instruction sets that decide which 16-bit kernels a CPU runs.
DECISIVE_FLAGS = frozenset(
    """
    avx avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_fp16 avx_ne_convert asimd bf16
    sve
    """.split()
)


def nearest_to_cpu(key: DeviceKey) -> str:
    """Return the name of the shipped profile nearest to a CPU.

    Without oneDNN's kernels 16 bits are emulated, whatever the CPU has. Products by
    avx512_bf16 take Intel's CPUs longer than those in float32, and AMD's half the time:
    both measured.
    """
    if key.onednn and "amx_bf16" in key.flags:
        return "cpu-amx-bf16"
    if key.onednn and "avx512_bf16" in key.flags:
        intel = key.model.startswith("Intel")
        return "cpu-intel-avx512-bf16" if intel else "cpu-avx512-bf16"
    return "cpu-generic"


def nearest_to_gpu(name: str, capability: tuple[int, int]) -> str:
    """Return the name of the shipped profile nearest to a GPU.

    Args:
        name: as TensorFlow reports it.
        capability: compute capability.
    """
    if capability < (7, 0):
        # No tensor cores: the prices under which nothing is worth converting.
        return "cpu-generic"
    if capability == (7, 5):
        return "t4"
    if capability < (8, 0):
        return "v100"
    if capability < (9, 0):
        return "a100"
    return "h200" if "H200" in name.upper() else "h100"


def calibrated_path(cache_folder: Path, key: DeviceKey) -> Path:
    """Return where the measured profile of the device with ``key`` is kept."""
    digest = hashlib.sha256(str(key).encode()).hexdigest()[:16]
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
    return profile if profile.device == str(key) else None


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
    if gpu is not None and capability is not None:
        return DeviceProfile.load(nearest_to_gpu(gpu, capability))
    if gpu is None and cache_folder is not None:
        measured = calibrated_profile(cache_folder, key)
        if measured is not None:
            return measured
    return DeviceProfile.load(nearest_to_cpu(key))


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
