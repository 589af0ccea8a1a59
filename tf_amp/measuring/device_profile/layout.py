"""Every class that a calibration measures, in the order of their weight."""

from __future__ import annotations

from tf_amp.measuring.device_profile import elementwise, movement, products, rows
from tf_amp.measuring.device_profile.cases import Case
from tf_amp.measuring.device_profile.sizes import COARSE, FINE, Sizes

__all__ = ["COARSE", "FINE", "Sizes", "all_cases"]


def all_cases(sizes: Sizes) -> tuple[Case, ...]:
    """Return every class to measure, the most decisive first."""
    return (
        *products.matmuls(sizes),
        *elementwise.casts(sizes),
        *elementwise.arithmetic(sizes),
        *products.convolutions(sizes),
        *rows.by_rows(sizes),
        *rows.reductions(sizes),
        *products.batch_matmuls(sizes),
        *products.depthwise(sizes),
        *products.fused(sizes),
        *movement.moves(sizes),
        *movement.pools(sizes),
    )
