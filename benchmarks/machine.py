"""Which machine the figures belong to."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class Machine:
    """The processor as the report names it."""

    processor: str
    kind: str
    flags: tuple[str, ...]
    cores: int

    @property
    def has_low_units(self) -> bool:
        """Return whether the processor computes in 16 bits itself."""
        return self.kind != "neither avx512_bf16 nor amx_bf16"


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    facts = _cpu_facts()
    flags = tuple(flag for flag in _TELLING_FLAGS if flag in facts["flags"].split())
    low = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    return Machine(
        processor=facts["model name"],
        kind=low[0] if low else "neither avx512_bf16 nor amx_bf16",
        flags=flags,
        cores=len(os.sched_getaffinity(0)),
    )


def _cpu_facts() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    found = {key.strip(): value.strip() for key, _, value in pairs}
    return {"model name": platform.processor(), "flags": ""} | found
