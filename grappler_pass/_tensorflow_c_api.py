"""TensorFlow's C API through ctypes, and what the optimizer may ask Grappler by it.

An item pointer is valid only while TensorFlow waits for the optimizer's answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
from collections.abc import Iterable, Iterator

import tensorflow as tf
from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo

from grappler_pass.errors import AmpError


class CApiError(AmpError, RuntimeError):
    """TensorFlow's C API is missing or has refused a call."""


class Pointer(ctypes.c_void_p):
    """A pointer that is passed as it was returned: ctypes makes numbers of others."""


class _TFBuffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocator", ctypes.c_void_p),
    )


_BUFFER = ctypes.POINTER(_TFBuffer)
# What returns something else than an int, or nothing.
_RESULTS = {
    "TF_Message": ctypes.c_char_p,
    "TF_NewBuffer": _BUFFER,
    "TF_NewGraphProperties": Pointer,
    "TF_NewKernelBuilder": Pointer,
    "TF_NewOpDefinitionBuilder": Pointer,
    "TF_NewStatus": Pointer,
}
_STATUS = ("TF_NewStatus", "TF_DeleteStatus", "TF_GetCode", "TF_Message")
_GRAPPLER = (
    *("TF_NewBuffer", "TF_DeleteBuffer"),
    *("TF_GetNodesToPreserveListSize", "TF_GetNodesToPreserveList"),
    *("TF_GetFetchNodesListSize", "TF_GetFetchNodesList"),
    *("TF_NewGraphProperties", "TF_DeleteGraphProperties", "TF_InferStatically"),
    *("TF_GetOutputPropertiesListSize", "TF_GetOutputPropertiesList"),
)


def library_with(
    names: Iterable[str], paths: Iterable[str | None]
) -> ctypes.CDLL | None:
    """Return the first library that has functions of some names, and a status.

    They take pointers, byte strings, ints, and what ctypes has for other integers.
    """
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            for name in (*_STATUS, *names):
                getattr(library, name).restype = _RESULTS.get(name, ctypes.c_int)
            return library
    return None


@contextlib.contextmanager
def new_status(library: ctypes.CDLL) -> Iterator[Pointer]:
    """Make what functions of a library say in whether they have failed."""
    status = library.TF_NewStatus()
    try:
        yield status
    finally:
        library.TF_DeleteStatus(status)


def raise_if_failed(library: ctypes.CDLL, status: Pointer) -> None:
    """Raise CApiError if a function has said in a status that it failed."""
    if library.TF_GetCode(status) != 0:
        message = library.TF_Message(status).decode(errors="replace")
        raise CApiError(f"TensorFlow's C API answered: {message}")


def output_properties(
    item: int, node_names: Iterable[str]
) -> Iterator[tuple[str, list[OpInfo.TensorProperties]]]:
    """Infer shapes, and yield each node that has outputs with their properties.

    Raises:
      CApiError: the C API is missing or the inference failed.
    """
    library = _library()
    with new_status(library) as status:
        properties = library.TF_NewGraphProperties(Pointer(item))
        try:
            # Feeds keep the shape they declare: that is right for pricing a plan.
            library.TF_InferStatically(properties, 1, 0, 0, 0, status)
            raise_if_failed(library, status)
            for name in node_names:
                about, count = (properties, name.encode()), ctypes.c_int()
                library.TF_GetOutputPropertiesListSize(
                    *about, ctypes.byref(count), status
                )
                made = (library.TF_NewBuffer() for _ in range(count.value))
                buffers = (_BUFFER * count.value)(*made)
                library.TF_GetOutputPropertiesList(*about, buffers, count, status)
                found = []
                for buffer in buffers:
                    held = buffer.contents
                    data = ctypes.string_at(held.data, held.length)
                    found.append(OpInfo.TensorProperties.FromString(data))
                    library.TF_DeleteBuffer(buffer)
                if found:
                    yield name, found
        finally:
            library.TF_DeleteGraphProperties(properties)


def names_of(item: int, kind: str) -> tuple[str, ...]:
    """Return the names of the "NodesToPreserve" of an item, or of its "FetchNodes"."""
    library = _library()
    count_names = getattr(library, f"TF_Get{kind}ListSize")
    list_names = getattr(library, f"TF_Get{kind}List")
    about, number, storage_bytes = Pointer(item), ctypes.c_int(), ctypes.c_size_t()
    with new_status(library) as status:
        count_names(about, ctypes.byref(number), ctypes.byref(storage_bytes), status)
        raise_if_failed(library, status)
        starts = (ctypes.c_void_p * number.value)()
        lengths = (ctypes.c_size_t * number.value)()
        storage = ctypes.create_string_buffer(max(storage_bytes.value, 1))
        list_names(about, starts, lengths, number, storage, storage_bytes, status)
        raise_if_failed(library, status)
        return tuple(
            ctypes.string_at(start, length).decode() if length else ""
            for start, length in zip(starts, lengths, strict=True)
        )


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the loaded library that has the C API, its functions declared.

    Raises:
      CApiError: no library of this TensorFlow has it.
    """
    folder = pathlib.Path(tf.sysconfig.get_lib())
    patterns = (
        "libtensorflow_cc.so*",
        "libtensorflow_cc.*dylib",
        "python/_pywrap_tensorflow_internal.*",
    )
    found = (str(path) for pattern in patterns for path in sorted(folder.glob(pattern)))
    # None is whatever this process has loaded globally.
    if library := library_with(_GRAPPLER, (None, *found)):
        return library
    raise CApiError(
        f"No library of TensorFlow {tf.__version__} in {tf.sysconfig.get_lib()} has "
        "the Grappler C API (TF_NewGraphProperties). Install TensorFlow 2.16 or newer."
    )
