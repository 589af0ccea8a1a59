"""The kernels that keep weights between calls, registered with TensorFlow.

They are plain C (kept_weights.c), and know TensorFlow by a table of functions alone.
"""

from __future__ import annotations

import ctypes
import pathlib
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from grappler_pass._tensorflow_c_api import (
    Pointer,
    library_with,
    new_status,
    raise_if_failed,
)
from grappler_pass.fork_safety import renewed_lock

RECALL, KEEP, KEPT = "TfAmpRecall", "TfAmpKeep", "TfAmpKept"

_PATH = pathlib.Path(__file__).with_name("_kept_weights.so")
# In the order of `functions` in kept_weights.c.
_FUNCTIONS = (
    "TF_NewStatus",
    "TF_DeleteStatus",
    "TF_SetStatus",
    "TF_NumInputs",
    "TF_NumOutputs",
    "TF_GetInput",
    "TF_SetOutput",
    "TF_AllocateOutput",
    "TF_OpKernelContext_Failure",
    "TF_NewTensor",
    "TF_DeleteTensor",
    "TF_TensorData",
    "TF_TensorByteSize",
    "TF_OpKernelConstruction_GetAttrSize",
)


class _Op(NamedTuple):
    """What an op is like, and which functions make, run and delete its kernel."""

    attrs: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernel: tuple[str | None, str, str | None]


_SOURCES, _VALUES = "Tsources: list(type) >= 1", "Tkept: list(type) >= 1"
_OPS = {
    RECALL: _Op(
        (_SOURCES,),
        ("sources: Tsources",),
        ("found: bool", "token: int64"),
        ("tf_amp_make_store", "tf_amp_recall", "tf_amp_delete_store"),
    ),
    KEEP: _Op(
        (_SOURCES, _VALUES),
        ("token: int64", "sources: Tsources", "values: Tkept"),
        ("made: int64",),
        ("tf_amp_count_values", "tf_amp_keep", "tf_amp_forget_count"),
    ),
    KEPT: _Op(
        (_VALUES,), ("token: int64",), ("values: Tkept",), (None, "tf_amp_kept", None)
    ),
}
_REGISTERING = ("TF_NewOpDefinitionBuilder", "TF_NewKernelBuilder")


class _Process:
    """What this process has registered, and whether it keeps weights."""

    lock = renewed_lock()
    library: ctypes.CDLL | None = None
    keeps = True


def are_at_hand() -> bool:
    """Return whether graphs may keep weights; the first call registers the kernels."""
    with _Process.lock:
        if _Process.keeps and _Process.library is None:
            try:
                _Process.library = _registered()
            except (OSError, AttributeError, RuntimeError) as error:
                logging.info("Weights are not kept between calls: %s", error)
                _Process.keeps = False
        return _Process.keeps


def stop_keeping() -> None:
    """Keep nothing from now on, and let go of what is kept.

    For a process whose weights change: what a variable held before is not freed while
    it is kept, and the first change after it was kept copies the variable.
    """
    if not _Process.keeps:
        return
    with _Process.lock:
        _Process.keeps = False
        if _Process.library is not None:
            _Process.library.tf_amp_stop_keeping()


def _registered() -> ctypes.CDLL:
    """Return the library of the kernels, registered with TensorFlow.

    Raises:
      OSError: it is missing, or no library of TensorFlow has the C API of kernels.
      RuntimeError: TensorFlow refuses an op.
    """
    library = ctypes.CDLL(str(_PATH))
    folder = pathlib.Path(tf.sysconfig.get_lib())
    paths = map(str, sorted(folder.glob("libtensorflow_framework*")))
    framework = library_with((*_FUNCTIONS, *_REGISTERING), paths)
    if framework is None:
        raise OSError(f"no library in {folder} has TensorFlow's C API of kernels")
    pointers = [_pointer(getattr(framework, name)) for name in _FUNCTIONS]
    library.tf_amp_set_functions((Pointer * len(pointers))(*pointers))
    unknown_shape = _pointer(framework.TF_ShapeInferenceContextSetUnknownShape)
    with new_status(framework) as status:
        for name, op in _OPS.items():
            builder = framework.TF_NewOpDefinitionBuilder(name.encode())
            ports = {"Attr": op.attrs, "Input": op.inputs, "Output": op.outputs}
            for kind, texts in ports.items():
                add = getattr(framework, f"TF_OpDefinitionBuilderAdd{kind}")
                for text in texts:
                    add(builder, text.encode())
            framework.TF_OpDefinitionBuilderSetShapeInferenceFunction(
                builder, unknown_shape
            )
            framework.TF_RegisterOpDefinition(builder, status)
            raise_if_failed(framework, status)
            kernel = [f and _pointer(getattr(library, f)) for f in op.kernel]
            builder = framework.TF_NewKernelBuilder(name.encode(), b"CPU", *kernel)
            framework.TF_RegisterKernelBuilder(name.encode(), builder, status)
            raise_if_failed(framework, status)
    return library


def _pointer(function: Any) -> Pointer:
    return ctypes.cast(function, Pointer)
