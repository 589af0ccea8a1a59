"""Which 16-bit type and which device profile suit the devices at hand.

bfloat16 on every CPU and on GPUs that compute in it (capability 8.0), float16 on older
GPUs. Only physical devices are looked at, so that a program can still configure its
logical ones; nothing here is asked before the first graph arrives.
"""

from __future__ import annotations

import functools
import os
import pathlib
import platform
import re
from typing import TYPE_CHECKING, NamedTuple

from tf_amp import _tensorflow_private as private
from tf_amp.config import arithmetic_variables
from tf_amp.config.amp_config import AmpConfig

if TYPE_CHECKING:
    from grappler_pass.costs import DeviceKey, DeviceProfile

_BFLOAT16_CAPABILITY = _TF32_CAPABILITY = (8, 0)
_CPU_FILE = pathlib.Path("/proc/cpuinfo")
_GPU_DRIVER_FILE = pathlib.Path("/proc/driver/nvidia/version")


class Device(NamedTuple):
    """A device as TensorFlow describes it; the last two are for GPUs only."""

    device_type: str
    name: str
    model: str = ""
    capability: tuple[int, int] | None = None

    @property
    def low_dtype(self) -> str:
        """The 16-bit type this device computes in, or is least bad at."""
        if self.device_type != "GPU" or self.capability is None:
            return "bfloat16"
        return "bfloat16" if self.capability >= _BFLOAT16_CAPABILITY else "float16"


class Choice(NamedTuple):
    """What a graph is planned with: a type, and a profile per device type."""

    low_dtype: str
    profiles: tuple[tuple[str, DeviceProfile], ...]
    reason: str


@functools.cache
def present_devices() -> tuple[Device, ...]:
    """Return the CPU, and the GPUs this program may see."""
    import tensorflow as tf

    gpus = []
    for device in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        capability = details.get("compute_capability")
        model = details.get("device_name", "GPU")
        gpus.append(Device("GPU", device.name, model, capability))
    cpu = Device("CPU", "/physical_device:CPU:0", cpu_model())
    return (cpu, *gpus)


def choose(config: AmpConfig, device_type: str) -> Choice:
    """Choose for graphs that run on devices of one type, "CPU" or "GPU".

    A type or a profile that is named in the configuration is taken as it is.

    Raises:
      ProfileError: the profile named in the configuration cannot be loaded.
    """
    if config.device_profile:
        return _choose_for_profile(config, config.device_profile)
    target = device_of_type(device_type)
    profiles = {d.device_type: profile_of(config, d) for d in _oldest_first()[::-1]}
    reason = f"{target.model or target.name} computes in {target.low_dtype}"
    return Choice(
        config.dtype or target.low_dtype,
        tuple(profiles.items()),
        "named by the user" if config.dtype else reason,
    )


def device_of_type(device_type: str) -> Device:
    """Return the device that decides for its type; the CPU where there is none.

    Of several GPUs that is the oldest: what suits it works on the others too.
    """
    alike = [d for d in _oldest_first() if d.device_type == device_type]
    return alike[0] if alike else present_devices()[0]


def _oldest_first() -> list[Device]:
    return sorted(present_devices(), key=lambda device: device.capability or (0, 0))


def profile_of(config: AmpConfig, device: Device) -> DeviceProfile:
    """Return the measured profile of a device, or the shipped one nearest to it."""
    from grappler_pass.costs import profile_for

    gpu = device.model if device.device_type == "GPU" else None
    return profile_for(
        config.device_profile, cpu_key(), config.cache_dir, gpu, device.capability
    )


def profile_dtype(profile: DeviceProfile) -> str:
    """Return the 16-bit type of the device that a profile describes."""
    if profile.kind == "cpu":
        return "bfloat16"
    rates = profile.roofline.matrix_flops
    bfloat16_pays = rates.get("bfloat16", 0.0) > rates["float32"]
    return "bfloat16" if bfloat16_pays else "float16"


def cpu_key() -> DeviceKey:
    """Return what must agree for a measured profile of this CPU to hold."""
    from grappler_pass.costs import DECISIVE_FLAGS, DeviceKey

    onednn = private.is_onednn_enabled()
    return DeviceKey(
        model=cpu_model(),
        flags=cpu_flags() & DECISIVE_FLAGS,
        threads=_op_threads(),
        onednn=True if onednn is None else onednn,
        float32_products=arithmetic_variables.float32_products(),
    )


def cost_key(device: Device) -> str:
    """Return what must agree for a cost measured on a device to hold: for people too.

    A CPU's model, decisive instruction sets, threads, and whether oneDNN is on; a GPU's
    model and driver. How float32 is computed, where that is not as usual.
    """
    if device.device_type == "GPU":
        tf32 = ", TF32 off" if _lacks_tf32(device) else ""
        return f"{device.model or 'GPU'}, driver {_gpu_driver()}{tf32}"
    return str(cpu_key())


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's instruction sets, as Linux names them."""
    return frozenset(_cpu_field(("flags", "Features")).split())


@functools.cache
def cpu_model() -> str:
    """Return the CPU's name, for people and for its profile's key."""
    return _cpu_field(("model name",)) or platform.machine()


def _choose_for_profile(config: AmpConfig, requested: str) -> Choice:
    from grappler_pass.costs import DeviceProfile

    profile = DeviceProfile.load(requested)
    low_dtype = config.dtype or profile_dtype(profile)
    profiles = (("CPU", profile), ("GPU", profile))
    return Choice(low_dtype, profiles, f"planned for the profile {profile.name}")


def _cpu_field(names: tuple[str, ...]) -> str:
    try:
        text = _CPU_FILE.read_text(errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""


@functools.cache
def _gpu_driver() -> str:
    """Return the version of NVIDIA's driver; "unknown" where it is not known."""
    try:
        text = _GPU_DRIVER_FILE.read_text(errors="replace")
    except OSError:
        return "unknown"
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return version.group() if version else "unknown"


def _lacks_tf32(device: Device) -> bool:
    """Return whether float32 is exact in products that could be computed in TF32."""
    import tensorflow as tf

    if device.capability is not None and device.capability < _TF32_CAPABILITY:
        return False
    is_on = bool(tf.config.experimental.tensor_float_32_execution_enabled())
    return not is_on or arithmetic_variables.is_tf32_refused()


def _op_threads() -> int:
    """Return the threads of one op: the program's word, the environment's, or all."""
    import tensorflow as tf

    chosen = int(tf.config.threading.get_intra_op_parallelism_threads())
    asked = chosen or arithmetic_variables.op_threads()
    return asked or len(os.sched_getaffinity(0))
