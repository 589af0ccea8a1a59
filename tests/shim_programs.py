"""The shim by itself: programs that replace graphs, and graphs without TensorFlow."""

from __future__ import annotations

import ctypes
import pathlib
import threading

from tests.forking import run_forked

# Doubles every constant 1.0, so that it shows whether a graph was replaced.
DOUBLING = """
import os, sys, threading, time
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from grappler_pass import plugin

def double_ones(graph, item):
    graph_def = GraphDef.FromString(graph)
    for node in graph_def.node:
        if node.op == "Const":
            value = tf.make_ndarray(node.attr["value"].tensor)
            if value.dtype == "float32" and value.shape == () and value == 1:
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(2.0))
    return graph_def.SerializeToString()

def fresh_function():
    @tf.function
    def add_one(x):
        return tf.matmul(x, x) + 1.0
    return add_one

def answer(function=None):
    return float((function or fresh_function())(tf.zeros((3, 3)))[0, 0])
"""


def run_with_shim(code: str) -> list[str]:
    """Run code after the common part, and return what it printed."""
    return run_forked(f"{DOUBLING}\n{code}").lines()


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
