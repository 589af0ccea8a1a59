"""The type, profiles and loss scale of a configuration on the devices available.

bfloat16 on every CPU and on GPUs that compute in it (capability 8.0), float16 on older
GPUs. Only physical devices are looked at, so that a program can still configure its
logical ones; nothing here is asked before the first graph arrives.

What an op costs holds only while some other variables of the environment stay, by which
TensorFlow and the libraries that it calls compute; they are read as their owners do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import platform
import re
from typing import TYPE_CHECKING, NamedTuple

from tf_amp import _tensorflow_private as private
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.loss_scales.protocol import LossScale, NoOpLossScale
from tf_amp.config.loss_scales.words import loss_scale_from_words

if TYPE_CHECKING:
    from grappler_pass.costs import DeviceKey, DeviceProfile, GpuKey, Key

_BFLOAT16_CAPABILITY = _TF32_CAPABILITY = (8, 0)
_CPU_FILE = pathlib.Path("/proc/cpuinfo")
# As Linux names the instructions of x86 and of ARM.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_GPU_DRIVER_FILE = pathlib.Path("/proc/driver/nvidia/version")

_OP_THREADS = "TF_NUM_INTRAOP_THREADS"
_PRODUCTS_OF_TENSORFLOW = "TF_SET_ONEDNN_FPMATH_MODE"
_PRODUCTS_OF_ONEDNN = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
_TF32 = "NVIDIA_TF32_OVERRIDE"
# How names of variables begin by which oneDNN, cuDNN and cuBLAS choose kernels.
_KERNELS = (
    "CUBLAS_",
    "CUDNN_",
    "DNNL_",
    "NVIDIA_",
    "ONEDNN_",
    "TF_CUDNN_",
    "TF_ENABLE_ONEDNN_",
    "TF_ONEDNN_",
)

_MOST_THREADS = 2**31 - 1
_PRODUCT_TYPES = ("any", "bf16", "f16", "tf32")

# Of the machine, of this process in pages, and of the container that it runs in.
_FREE = (pathlib.Path("/proc/meminfo"), re.compile(r"MemAvailable:\s+(\d+) kB"))
_HELD = (pathlib.Path("/proc/self/statm"), re.compile(r"\d+ (\d+)"))
_MOST = (pathlib.Path("/sys/fs/cgroup/memory.max"), re.compile(r"(\d+)"))
_USED = (pathlib.Path("/sys/fs/cgroup/memory.stat"), re.compile(r"anon (\d+)"))

_XLA_FLAGS = "TF_XLA_FLAGS"
_COMPILES = ("tf_xla_async_compilation", "tf_xla_cpu_global_jit")
_COMPILES_ALL = "tf_xla_auto_jit"
_CACHE = re.compile(r"--tf_xla_persistent_cache_directory=(\S+)")
_CACHE_IS_READ_ONLY, _CACHED = (
    "tf_xla_persistent_cache_read_only",
    "xla_compile_cache_*",
)

NO_SCALING = NoOpLossScale()


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


class DeviceChoice(NamedTuple):
    """A 16-bit type, and a profile per device type, to plan a graph with."""

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


def choose(config: AmpConfig, device_type: str) -> DeviceChoice:
    """Choose for graphs that run on devices of one type, "CPU" or "GPU".

    A type or a profile that is named in the configuration is taken as it is.

    Raises:
      ProfileError: the profile named in the configuration cannot be loaded.
    """
    if config.device_profile:
        from grappler_pass.costs import DeviceProfile

        profile = DeviceProfile.load(config.device_profile)
        profile = profile.with_tensor_float_32(uses_tensor_float_32())
        return DeviceChoice(
            config.dtype or profile_dtype(profile),
            (("CPU", profile), ("GPU", profile)),
            f"planned for the profile {profile.name}",
        )
    target = device_of_type(device_type)
    kinds = dict.fromkeys(d.device_type for d in reversed(present_devices()))
    profiles = {kind: profile_of(config, device_of_type(kind)) for kind in kinds}
    reason = f"{target.model or target.name} computes in {target.low_dtype}"
    return DeviceChoice(
        config.dtype or target.low_dtype,
        tuple(profiles.items()),
        "named by the user" if config.dtype else reason,
    )


def device_of_type(device_type: str) -> Device:
    """Return the device that decides for its type; the CPU where there is none.

    Of several GPUs that is the oldest: what suits it works on the others too.
    """
    alike = [d for d in present_devices() if d.device_type == device_type]
    cpu = present_devices()[0]
    return min(alike, key=lambda device: device.capability or (0, 0), default=cpu)


def profile_of(config: AmpConfig, device: Device) -> DeviceProfile:
    """Return the measured profile of a device, or the shipped one nearest to it."""
    from grappler_pass.costs import profile_for

    profile = profile_for(config.device_profile, key_of(device), config.cache_dir)
    return profile.with_tensor_float_32(uses_tensor_float_32())


def note_on_other_machine(profile: DeviceProfile) -> str:
    """Say that a profile is not that of this machine; "" where it is."""
    here = device_of_type("GPU")
    own = profile_of(AmpConfig(cache_dir=AmpConfig.from_env().cache_dir), here)
    if (own.name, own.device) == (profile.name, profile.device):
        return ""
    return (
        f"This is for {profile.name}. This machine has {here.model or here.name}, "
        f"whose profile is {own.name}."
    )


def profile_dtype(profile: DeviceProfile) -> str:
    """Return the 16-bit type of the device that a profile describes."""
    if profile.kind == "cpu":
        return "bfloat16"
    rates = profile.roofline.matrix_flops
    bfloat16_pays = rates.get("bfloat16", 0.0) > rates["float32"]
    return "bfloat16" if bfloat16_pays else "float16"


def cpu_key() -> DeviceKey:
    """Return the facts of this CPU that a measured profile of it holds for.

    The threads of one op are the program's word, the environment's, or all. There a
    variable that is no whole number of 32 bits counts for nothing. TensorFlow ends with
    the first op where it is negative.
    """
    import tensorflow as tf

    from grappler_pass.costs import DECISIVE_FLAGS, DeviceKey

    chosen = int(tf.config.threading.get_intra_op_parallelism_threads())
    text = os.environ.get(_OP_THREADS, "").strip(" \t\n\v\f\r")
    count = int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else 0
    asked = count if 0 < count <= _MOST_THREADS else 0
    onednn = private.is_onednn_enabled()
    # The type that oneDNN may round float32 to in products. On CPUs without units for
    # it the numbers and their price stay the same.
    named = (os.environ.get(name, "").lower() for name in _PRODUCTS_OF_ONEDNN)
    products = next(filter(None, named), "")
    if os.environ.get(_PRODUCTS_OF_TENSORFLOW) == "BF16":
        products = "bf16"
    return DeviceKey(
        model=cpu_model(),
        flags=cpu_flags() & DECISIVE_FLAGS,
        threads=chosen or asked or len(os.sched_getaffinity(0)),
        onednn=True if onednn is None else onednn,
        float32_products=products if products in _PRODUCT_TYPES else "",
    )


def key_of(device: Device) -> Key:
    """Return the facts of a device that what is measured on it holds for."""
    return gpu_key(device) if device.device_type == "GPU" else cpu_key()


def gpu_key(device: Device) -> GpuKey:
    """Return the facts of a GPU that what is measured on it holds for."""
    from grappler_pass.costs import GpuKey

    has_tf32 = device.capability is None or device.capability >= _TF32_CAPABILITY
    try:
        text = _GPU_DRIVER_FILE.read_text(errors="replace")
    except OSError:
        text = ""
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return GpuKey(
        model=device.model or "GPU",
        capability=device.capability,
        driver=version.group() if version else "unknown",
        tf32=uses_tensor_float_32() if has_tf32 else None,
    )


def uses_tensor_float_32() -> bool:
    """Return whether products of float32 are rounded to TensorFloat-32 on GPUs with it.

    By a variable NVIDIA's libraries do not, whatever a program says.
    """
    import tensorflow as tf

    is_refused = os.environ.get(_TF32, "").strip() == "0"
    is_on: bool = tf.config.experimental.tensor_float_32_execution_enabled()
    return is_on and not is_refused


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's instruction sets, as Linux names them."""
    return frozenset(_cpu_field(("flags", "Features")).split())


def has_bfloat16_units() -> bool:
    """Return whether this CPU has instructions for products in bfloat16."""
    return not _BF16_FLAGS.isdisjoint(cpu_flags())


@functools.cache
def cpu_model() -> str:
    """Return the CPU's name, for people and for its profile's key."""
    return _cpu_field(("model name",)) or platform.machine()


def kernel_variables() -> str:
    """Return the variables, as NAME=value, by which libraries choose kernels."""
    names = sorted(n for n in os.environ if n.startswith(_KERNELS) and "VERB" not in n)
    return " ".join(f"{name}={os.environ[name]}" for name in names)


def loss_scale_for(config: AmpConfig | None) -> LossScale:
    """Return the loss scale for gradients taken under a configuration, if any.

    What the user asks for goes before all else, whatever the type. Where nothing was
    said, float16 needs scaling, and what stays float32 or becomes bfloat16 does not.
    """
    if config is None:
        return NO_SCALING
    if config.loss_scale is not None:
        return config.loss_scale
    if config.rewrites and low_dtype_of(config) == "float16":
        return loss_scale_from_words("dynamic")
    return NO_SCALING


def low_dtype_of(config: AmpConfig | None) -> str:
    """Return the 16-bit type that graphs are rewritten to; by default the device's."""
    if config is None:
        return _low_dtype(None, None)
    return _low_dtype(config.dtype, config.device_profile)


@functools.cache
def _low_dtype(dtype: str | None, device_profile: str | None) -> str:
    if dtype is not None:
        return dtype
    has_gpu = any(d.device_type == "GPU" for d in present_devices())
    if device_profile is None:
        return device_of_type("GPU" if has_gpu else "CPU").low_dtype
    config = AmpConfig(device_profile=device_profile)
    return choose(config, "GPU" if has_gpu else "CPU").low_dtype


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


def has_memory_for_copies() -> bool:
    """Return whether memory would hold all that this process holds a second time."""
    held, free = _number_in(_HELD), _number_in(_FREE)
    most, used = _number_in(_MOST), _number_in(_USED)
    if held is None or free is None:
        return True
    bytes_free = free * 1024
    if most is not None and used is not None:
        bytes_free = min(bytes_free, most - used)
    return held * os.sysconf("SC_PAGE_SIZE") < bytes_free


def _number_in(place: tuple[pathlib.Path, re.Pattern[str]]) -> int | None:
    path, pattern = place
    try:
        found = pattern.search(path.read_text(errors="replace"))
    except OSError:
        return None
    return int(found[1]) if found else None


def add_xla_flags() -> None:
    """Let XLA compile clusters on CPUs, too, and while the program goes on.

    TensorFlow reads the flags when it first computes or looks for devices. What the
    program says itself stays, and where it has all compiled nothing is added.
    """
    said = os.environ.get(_XLA_FLAGS, "")
    added = [f"--{flag}" for flag in _COMPILES if flag not in said]
    if added and _COMPILES_ALL not in said:
        os.environ[_XLA_FLAGS] = " ".join([*said.split(), *added])


def empty_xla_cache() -> bool:
    """Remove what XLA has kept of earlier processes; return whether it may have been.

    XLA does not say which of its files it cannot read, and makes all of them again.
    """
    said = os.environ.get(_XLA_FLAGS, "")
    named = _CACHE.search(said)
    if named is None or _CACHE_IS_READ_ONLY in said:
        return False
    for path in pathlib.Path(named[1]).glob(_CACHED):
        with contextlib.suppress(OSError):
            path.unlink()
    return True


def compiles_all() -> bool:
    """Return whether the program has XLA compile clusters of all its functions."""
    import tensorflow as tf

    is_in_flags = _COMPILES_ALL in os.environ.get(_XLA_FLAGS, "")
    return is_in_flags or bool(tf.config.optimizer.get_jit())
