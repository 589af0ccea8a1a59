"""What other variables of the environment say of how TensorFlow computes.

They belong to TensorFlow and the libraries that it calls. What an op costs holds only
while they stay; here they are read as their owners read them.
"""

from __future__ import annotations

import os
import re

_OP_THREADS = "TF_NUM_INTRAOP_THREADS"
_PRODUCTS_OF_TENSORFLOW = "TF_SET_ONEDNN_FPMATH_MODE"
_PRODUCTS_OF_ONEDNN = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
_TF32 = "NVIDIA_TF32_OVERRIDE"
# How names of variables begin by which oneDNN, cuDNN and cuBLAS choose kernels.
_KERNELS = (
    "CUBLAS_",
    "CUDNN_",
    "DNNL_",
    "NVIDIA_",
    "ONEDNN_",
    "TF_CUDNN_",
    "TF_ENABLE_ONEDNN_",
    "TF_ONEDNN_",
)

_MOST_THREADS = 2**31 - 1
_PRODUCT_TYPES = ("any", "bf16", "f16", "tf32")


def op_threads() -> int:
    """Return the threads that one op may use; 0: TensorFlow decides.

    What is no whole number of 32 bits counts for nothing. TensorFlow ends with the
    first op where it is negative.
    """
    text = os.environ.get(_OP_THREADS, "").strip(" \t\n\v\f\r")
    count = int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else 0
    return count if 0 < count <= _MOST_THREADS else 0


def float32_products() -> str:
    """Return the type that oneDNN may round float32 to in products; "" for none.

    On CPUs without units for the type the numbers and their price stay the same.
    """
    if os.environ.get(_PRODUCTS_OF_TENSORFLOW) == "BF16":
        return "bf16"
    given = (os.environ.get(name, "").lower() for name in _PRODUCTS_OF_ONEDNN)
    chosen = next(filter(None, given), "")
    return chosen if chosen in _PRODUCT_TYPES else ""


def of_kernels() -> str:
    """Return the variables, as NAME=value, by which libraries choose kernels."""
    names = sorted(n for n in os.environ if n.startswith(_KERNELS) and "VERB" not in n)
    return " ".join(f"{name}={os.environ[name]}" for name in names)


def is_tf32_refused() -> bool:
    """Return whether NVIDIA's libraries are to use no TF32, whatever a program says."""
    return os.environ.get(_TF32, "").strip() == "0"
