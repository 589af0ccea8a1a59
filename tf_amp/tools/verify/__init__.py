"""Proof that the numbers hold: verify, find culprits, measure ranges.

    compare, verify      float32 beside mixed precision, on the same inputs
    bisect               the operations that must be float32 for a tolerance to hold
    ranges_of            what tensors keep to, and what cannot go low therefore

All of it runs graphs that the one pass has rewritten, outside of their program.
"""

from __future__ import annotations

from tf_amp.config.ranges import Ranges, SafeRange, TensorRange, safe_range
from tf_amp.tools.graph_runs.batches import (
    InputSpec,
    batches_from_file,
    checked_batches,
    specs_of,
)
from tf_amp.tools.ranges.ranging import ranges_of
from tf_amp.tools.verify.comparing import compare
from tf_amp.tools.verify.verification import TensorCheck, Verification

__all__ = [
    "InputSpec",
    "Ranges",
    "SafeRange",
    "TensorCheck",
    "TensorRange",
    "Verification",
    "batches_from_file",
    "checked_batches",
    "compare",
    "ranges_of",
    "safe_range",
    "specs_of",
]
