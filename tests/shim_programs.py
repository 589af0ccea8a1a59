"""Programs in fresh processes that replace graphs through the shim alone."""

from __future__ import annotations

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
