"""The private names of TensorFlow that the pass needs; it has no others.

What every plan depends on is here: without these names there is no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import kernels, load_library, op_def_registry


def op_def(name: str) -> Any | None:
    """Return the OpDef of an op; None where the runtime has none of that name."""
    return op_def_registry.get(name)


def registered_kernels(op: str) -> Sequence[Any]:
    """Return the KernelDefs that the runtime has of an op."""
    registered: Sequence[Any] = kernels.get_registered_kernels_for_op(op).kernel
    return registered


def load_plugin(path: str) -> None:
    """Have TensorFlow load a plugin library.

    The public function also lists the physical devices again, which forgets what the
    program has set with `set_visible_devices` and `set_memory_growth`.
    """
    register = getattr(pywrap_tf_session, "TF_LoadPluggableDeviceLibrary", None)
    (register or load_library.load_pluggable_device_library)(path)
