"""Which part of a program runs on which of several heterogeneous devices.

`precision_affinity` spreads one graph over two devices, `batch_shares` one batch over
replicas, and `offload_optimizer` keeps the state of an optimizer on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_amp.lazy_names import lazy_names

if TYPE_CHECKING:
    from tf_amp.placement.affinity import PrecisionAffinity, precision_affinity
    from tf_amp.placement.offloading import offload_optimizer, offload_report
    from tf_amp.placement.shares import batch_shares, measured_throughputs

__all__ = [
    "PrecisionAffinity",
    "batch_shares",
    "measured_throughputs",
    "offload_optimizer",
    "offload_report",
    "precision_affinity",
]

# So that type checkers refuse a name that is not there.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "PrecisionAffinity": ".affinity",
            "batch_shares": ".shares",
            "measured_throughputs": ".shares",
            "offload_optimizer": ".offloading",
            "offload_report": ".offloading",
            "precision_affinity": ".affinity",
        },
    )
