"""TensorFlow's Grappler C API through ctypes: what the optimizer may ask of an item.

An item pointer is valid only while TensorFlow waits for the optimizer's answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

from grappler_pass.errors import AmpError


class GrapplerApiError(AmpError, RuntimeError):
    """TensorFlow's Grappler C API is missing or has refused a call."""


class _TFBuffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocator", ctypes.c_void_p),
    )


_POINTER = ctypes.c_void_p
_FLAG = ctypes.c_ubyte
_INT_OUT = ctypes.POINTER(ctypes.c_int)
_SIZES = ctypes.POINTER(ctypes.c_size_t)
_STRINGS = ctypes.POINTER(ctypes.c_void_p)
_BUFFER = ctypes.POINTER(_TFBuffer)
_COUNT_NAMES = (_POINTER, _INT_OUT, _SIZES, _POINTER)
_LIST_NAMES = (
    *(_POINTER, _STRINGS, _SIZES),
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, _POINTER),
)
_COUNT_OUTPUTS = (_POINTER, ctypes.c_char_p, _INT_OUT, _POINTER)
_LIST_OUTPUTS = (
    *(_POINTER, ctypes.c_char_p, ctypes.POINTER(_BUFFER)),
    *(ctypes.c_int, _POINTER),
)

# name: type of the result, types of the arguments.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "TF_NewStatus": (_POINTER, ()),
    "TF_DeleteStatus": (None, (_POINTER,)),
    "TF_GetCode": (ctypes.c_int, (_POINTER,)),
    "TF_Message": (ctypes.c_char_p, (_POINTER,)),
    "TF_NewBuffer": (_BUFFER, ()),
    "TF_DeleteBuffer": (None, (_BUFFER,)),
    "TF_GetNodesToPreserveListSize": (None, _COUNT_NAMES),
    "TF_GetNodesToPreserveList": (None, _LIST_NAMES),
    "TF_GetFetchNodesListSize": (None, _COUNT_NAMES),
    "TF_GetFetchNodesList": (None, _LIST_NAMES),
    "TF_NewGraphProperties": (_POINTER, (_POINTER,)),
    "TF_DeleteGraphProperties": (None, (_POINTER,)),
    "TF_InferStatically": (None, (_POINTER, _FLAG, _FLAG, _FLAG, _FLAG, _POINTER)),
    "TF_GetOutputPropertiesListSize": (None, _COUNT_OUTPUTS),
    "TF_GetOutputPropertiesList": (None, _LIST_OUTPUTS),
}


def output_properties(
    item: int, node_names: Iterable[str]
) -> Iterator[tuple[str, list[OpInfo.TensorProperties]]]:
    """Infer shapes, and yield each node that has outputs with their properties.

    Raises:
      GrapplerApiError: the C API is missing or the inference failed.
    """
    library = _library()
    with _new_status(library) as status:
        properties = library.TF_NewGraphProperties(item)
        try:
            # Feeds keep the shape they declare: that is right for pricing a plan.
            library.TF_InferStatically(properties, 1, 0, 0, 0, status)
            _raise_if_failed(library, status)
            for name in node_names:
                if outputs := _outputs(library, properties, name.encode(), status):
                    yield name, outputs
        finally:
            library.TF_DeleteGraphProperties(properties)


def _outputs(
    library: ctypes.CDLL, properties: int, name: bytes, status: int
) -> list[OpInfo.TensorProperties]:
    count = ctypes.c_int()
    library.TF_GetOutputPropertiesListSize(
        properties, name, ctypes.byref(count), status
    )
    number = count.value
    buffers = (_BUFFER * number)(*(library.TF_NewBuffer() for _ in range(number)))
    if number:
        library.TF_GetOutputPropertiesList(properties, name, buffers, number, status)
    found = []
    for buffer in buffers:
        data = ctypes.string_at(buffer.contents.data, buffer.contents.length)
        found.append(OpInfo.TensorProperties.FromString(data))
        library.TF_DeleteBuffer(buffer)
    return found


def names_of(item: int, kind: str) -> tuple[str, ...]:
    """Return the names of the "NodesToPreserve" of an item, or of its "FetchNodes"."""
    library = _library()
    count_names = getattr(library, f"TF_Get{kind}ListSize")
    list_names = getattr(library, f"TF_Get{kind}List")
    number, storage_bytes = ctypes.c_int(), ctypes.c_size_t()
    with _new_status(library) as status:
        count_names(item, ctypes.byref(number), ctypes.byref(storage_bytes), status)
        _raise_if_failed(library, status)
        starts = (ctypes.c_void_p * number.value)()
        lengths = (ctypes.c_size_t * number.value)()
        storage = ctypes.create_string_buffer(max(storage_bytes.value, 1))
        list_names(item, starts, lengths, number, storage, storage_bytes.value, status)
        _raise_if_failed(library, status)
        return tuple(
            ctypes.string_at(start, length).decode() if length else ""
            for start, length in zip(starts, lengths, strict=True)
        )


@contextlib.contextmanager
def _new_status(library: ctypes.CDLL) -> Iterator[int]:
    status = library.TF_NewStatus()
    try:
        yield status
    finally:
        library.TF_DeleteStatus(status)


def _raise_if_failed(library: ctypes.CDLL, status: int) -> None:
    if library.TF_GetCode(status) != 0:
        message = library.TF_Message(status).decode(errors="replace")
        raise GrapplerApiError(f"TensorFlow's Grappler C API answered: {message}")


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the loaded library that has the C API, its functions declared.

    Raises:
      GrapplerApiError: no library of this TensorFlow has it.
    """
    folder = pathlib.Path(tf.sysconfig.get_lib())
    patterns = (
        "libtensorflow_cc.so*",
        "libtensorflow_cc.*dylib",
        "python/_pywrap_tensorflow_internal.*",
    )
    found = (str(path) for pattern in patterns for path in sorted(folder.glob(pattern)))
    # None is whatever this process has loaded globally.
    for path in (None, *found):
        try:
            library = ctypes.CDLL(path)
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype = result
                function.argtypes = arguments
        except (OSError, AttributeError):
            continue
        return library
    raise GrapplerApiError(
        f"No library of TensorFlow {tf.__version__} in {tf.sysconfig.get_lib()} has "
        "the Grappler C API (TF_NewGraphProperties). Install TensorFlow 2.16 or newer."
    )
