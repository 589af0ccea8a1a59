"""Which kernels are run before they are first used: of kinds that were found wrong.

Products of matrices, elementwise ops, sums and what XLA compiles are not: in some
16,000 drawn cases none of them was wrong beyond what is known of it.
"""

from __future__ import annotations

from grappler_pass.graph.fusions import fused_parts
from grappler_pass.kernels.geometry import (
    Role,
    batch_product_of,
    matrix_sizes,
    role_of,
)
from grappler_pass.kernels.kernel import Kernel

# Those of CPUs are on the deny lists.
_RECURRENT = "CudnnRNN"
# What is fused behind a product and is no sum of products.
_CURVED = frozenset({"Elu", "GeluApproximate", "GeluExact", "Sigmoid", "Tanh"})


def needs_check(kernel: Kernel) -> bool:
    """Return whether a kernel is of a kind that was found wrong."""
    role = role_of(kernel.op)
    if role is Role.BATCH_PRODUCT:
        product = batch_product_of(kernel)
        is_thin = any(size in (1, None) for size in matrix_sizes(kernel))
        return is_thin or product.left is None or product.left != product.right
    return role is not Role.OTHER or _is_recurrent(kernel)


def is_exact(kernel: Kernel) -> bool:
    """Return whether integers make it add up exactly: a sum of products on a CPU.

    On GPUs convolutions may be computed by transforms, which are inexact on any data.
    """
    if kernel.device_type != "CPU" or _is_recurrent(kernel):
        return False
    fused = () if kernel.product_alone else fused_parts(kernel.proto)
    return not any(name in _CURVED for name, _ in fused)


def _is_recurrent(kernel: Kernel) -> bool:
    return kernel.op.startswith(_RECURRENT)
