"""The blocks of a layout in groups that are one batched product each.

Output rows or columns with the same number of blocks form a group, so that nothing is
padded: a layout with few distinct numbers takes few products.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from tf_amp.block_sparse.layout import BlockLayout, Indices


@dataclasses.dataclass(frozen=True)
class Group:
    """Lines of blocks, all columns or all rows, with the same number of blocks.

    Attributes:
      lines: int32 [lines], the columns (or rows).
      crossing: int32 [lines, blocks], the rows (or columns) that their blocks are in.
      blocks: int32 [lines, blocks], where these blocks stand in the layout.
    """

    lines: Indices
    crossing: Indices
    blocks: Indices


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Groups that hold every line once.

    Attributes:
      groups: by ascending number of blocks.
      line_order: int32 [lines], where each line stands in the groups put together.
      block_order: int32 [blocks], the same of each block.
    """

    groups: tuple[Group, ...]
    line_order: Indices
    block_order: Indices


@functools.lru_cache(maxsize=1024)
def columns_in_groups(layout: BlockLayout) -> Grouping:
    """Return the columns of a layout, grouped by their number of blocks."""
    # Sorted by column, then by row.
    order = np.argsort(layout.columns, kind="stable")
    return _grouping(layout.columns[order], layout.rows[order], order)


@functools.lru_cache(maxsize=1024)
def rows_in_groups(layout: BlockLayout) -> Grouping:
    """Return the rows of a layout, grouped by their number of blocks."""
    return _grouping(layout.rows, layout.columns, np.arange(len(layout)))


def _grouping(lines: Indices, crossing: Indices, blocks: np.ndarray) -> Grouping:
    counts = np.bincount(lines)
    begins = np.cumsum(counts) - counts
    groups = []
    for count in np.unique(counts):
        members = np.flatnonzero(counts == count)
        at = begins[members][:, None] + np.arange(count)
        parts = (members, crossing[at], blocks[at])
        groups.append(Group(*(each.astype(np.int32) for each in parts)))
    return Grouping(
        tuple(groups),
        _inverse(np.concatenate([group.lines for group in groups])),
        _inverse(np.concatenate([group.blocks.ravel() for group in groups])),
    )


def _inverse(permutation: Indices) -> Indices:
    return np.argsort(permutation).astype(np.int32)
