"""Which part of a program runs on which of several unlike devices.

`precision_affinity` spreads one graph over two devices, `batch_shares` one batch over
replicas, and `offload_optimizer` keeps the state of an optimizer on the host.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_amp.placement.affinity import PrecisionAffinity, precision_affinity
    from tf_amp.placement.offloading import offload_optimizer, offload_report
    from tf_amp.placement.shares import batch_shares
    from tf_amp.placement.throughput import measured_throughputs

__all__ = [
    "PrecisionAffinity",
    "batch_shares",
    "measured_throughputs",
    "offload_optimizer",
    "offload_report",
    "precision_affinity",
]

_HOMES = {
    "PrecisionAffinity": "affinity",
    "batch_shares": "shares",
    "measured_throughputs": "throughput",
    "offload_optimizer": "offloading",
    "offload_report": "offloading",
    "precision_affinity": "affinity",
}


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return list(__all__)
