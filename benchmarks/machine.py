"""Which machine the figures belong to."""

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tf_amp.config import devices

# One folder per GPU, where NVIDIA's driver is.
_GPUS = Path("/proc/driver/nvidia/gpus")
_TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class Machine:
    """The machine as the report names it.

    Attributes:
      processor: name of the CPU.
      kind: what decides what 16 bits gain: a GPU's name, or units of the CPU.
      flags: those instruction sets of the CPU that tell something.
      cores: of the CPU, for this process.
    """

    processor: str
    kind: str
    flags: tuple[str, ...]
    cores: int

    @property
    def has_low_units(self) -> bool:
        """Return whether it computes in 16 bits itself."""
        return self.kind != "neither avx512_bf16 nor amx_bf16"


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    flags = tuple(flag for flag in _TELLING_FLAGS if flag in devices.cpu_flags())
    low = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    return Machine(
        processor=devices.cpu_model(),
        kind=next(iter([*gpus(), *low]), "neither avx512_bf16 nor amx_bf16"),
        flags=flags,
        cores=len(os.sched_getaffinity(0)),
    )


def gpu_bytes() -> int:
    """Return the memory of the first GPU, and take nothing of it; 0 without a GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    number, total = ctypes.c_int(), ctypes.c_size_t()
    # Each answers 0 where it did as it was told.
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(number), 0)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), number)
    )
    return 0 if failed else total.value


def gpus() -> tuple[str, ...]:
    """Return the names of NVIDIA's GPUs, without starting any of their libraries."""
    texts = [path.read_text() for path in sorted(_GPUS.glob("*/information"))]
    found = [re.search(r"^Model:\s*(.+)$", text, re.M) for text in texts]
    return tuple(match[1] for match in found if match)
