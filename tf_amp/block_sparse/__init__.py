"""Products and Keras layers whose weights are zero but for a layout of dense blocks.

`block_sparse_matmul` is the product, `BlockSparseDense` the layer; `BlockLayout` says
where the blocks are, and functions named `..._layout` make layouts that are known to
train well. All are made of TensorFlow's own operations.
"""

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
