"""What tells a CPU, with TensorFlow as it runs there, from others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """What must agree for a measured profile to hold.

    Args:
        model: processor name.
        flags: the instruction sets that decide which kernels run.
        threads: threads that one op may use.
        onednn: whether TensorFlow's oneDNN kernels are on.
        float32_products: the type that these may round float32 to; "" for none.
    """

    model: str
    flags: frozenset[str]
    threads: int
    onednn: bool
    float32_products: str = ""

    def to_json(self) -> dict[str, object]:
        """Return plain values for a profile's "device" entry."""
        values = asdict(self) | {"flags": sorted(self.flags)}
        if not self.float32_products:
            # Profiles are kept under what is returned; older ones lack it.
            del values["float32_products"]
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceKey:
        """Read what ``to_json`` wrote."""
        return cls(
            model=str(data["model"]),
            flags=frozenset(data["flags"]),
            threads=int(data["threads"]),
            onednn=bool(data["onednn"]),
            float32_products=str(data.get("float32_products", "")),
        )
