"""Products and Keras layers whose weights are zero but for a layout of dense blocks.

`block_sparse_matmul` is the product, `BlockSparseDense` the layer; `BlockLayout` says
where the blocks are, and functions named `..._layout` make layouts that are known to
train well. All are made of TensorFlow's own operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_amp.lazy_names import lazy_names

if TYPE_CHECKING:
    from tf_amp.block_sparse.dense import BlockSparseDense
    from tf_amp.block_sparse.layout import (
        BlockLayout,
        banded_layout,
        barabasi_albert_layout,
        butterfly_layout,
        random_layout,
    )
    from tf_amp.block_sparse.product import block_sparse_matmul

__all__ = [
    "BlockLayout",
    "BlockSparseDense",
    "banded_layout",
    "barabasi_albert_layout",
    "block_sparse_matmul",
    "butterfly_layout",
    "random_layout",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BlockLayout": ".layout",
        "BlockSparseDense": ".dense",
        "banded_layout": ".layout",
        "barabasi_albert_layout": ".layout",
        "block_sparse_matmul": ".product",
        "butterfly_layout": ".layout",
        "random_layout": ".layout",
    },
)
