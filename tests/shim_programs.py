"""The shim by itself: graphs that reach Python without TensorFlow."""

from __future__ import annotations

import ctypes
import pathlib
import threading


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("data_deallocator", ctypes.c_void_p),
    )


class _Configs(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("switches", ctypes.c_int32 * 19),
    )


class _Optimizer(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("create_func", ctypes.c_void_p),
        ("optimize_func", ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)),
        ("destroy_func", ctypes.c_void_p),
    )


class _Params(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("version", ctypes.c_int32 * 3),
        ("device_type", ctypes.c_char_p),
        ("optimizer_configs", ctypes.POINTER(_Configs)),
        ("optimizer", ctypes.POINTER(_Optimizer)),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)


def graphs_seen(path: pathlib.Path, threads: int, calls: int) -> int:
    """Return how many graphs reach Python that threads pass at once.

    Args:
      path: of the shim; a copy that no TensorFlow has loaded.
      threads: that pass graphs.
      calls: of each thread.
    """
    shim = ctypes.CDLL(str(path))
    optimizer, configs = _Optimizer(), _Configs()
    params = _Params(ctypes.sizeof(_Params))
    params.optimizer_configs = ctypes.pointer(configs)
    params.optimizer = ctypes.pointer(optimizer)
    shim.TF_InitGraph(ctypes.byref(params), None)
    seen = []

    def look(*graph: object) -> int:
        seen.append(graph)
        return 0

    callback = _Callback(look)
    shim.tf_amp_set_callback(callback)

    def pass_graph() -> None:
        graph, output = _Buffer(b"", 0), _Buffer()
        for _ in range(calls):
            optimizer.optimize_func(
                None, ctypes.addressof(graph), None, ctypes.addressof(output), None
            )

    at_once = [threading.Thread(target=pass_graph) for _ in range(threads)]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    shim.tf_amp_set_callback(None)
    return len(seen)
