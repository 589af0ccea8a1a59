"""How densely the axes of each class are laid out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How densely the axes are laid out."""

    elements: tuple[int, ...]
    matrix: tuple[int, ...]
    batch: tuple[int, ...]
    batched_matrix: tuple[int, ...]
    pixels: tuple[int, ...]
    channels: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


COARSE = Sizes(
    elements=(1 << 10, 1 << 14, 1 << 17, 1 << 19, 1 << 21, 1 << 23),
    matrix=(8, 64, 256, 1024),
    batch=(4, 64),
    batched_matrix=(32, 128),
    pixels=(256, 4096, 65536),
    channels=(16, 64, 256),
    rows=(64, 1024, 16384),
    columns=(16, 128, 1024),
)
FINE = Sizes(
    elements=tuple(1 << power for power in (6, 10, 12, 14, 16, 18, 19, 20, 21, 23)),
    matrix=(4, 16, 64, 128, 512, 2048),
    batch=(4, 64),
    batched_matrix=(16, 64, 256),
    pixels=(64, 1024, 8192, 65536),
    channels=(16, 64, 256, 1024),
    rows=(8, 256, 2048, 16384, 131072),
    columns=(4, 64, 512, 4096),
)
