"""Which slots may be in 16 bits in graphs of TensorFlow, and what is counted there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tests.coloring import Colored, color
from tests.programs import Program, captured_as_by_grappler, program_from_function

X = np.ones((4, 8), np.float32)


def colored_as_by_grappler(program: Program, low_dtype: str = "bfloat16") -> Colored:
    captured = captured_as_by_grappler(program)
    fetch = " ".join((*captured.item.fetch, *captured.item.preserve))
    return color(captured.graph_def, fetch=fetch, low_dtype=low_dtype)


def colored_function(
    function: Callable[..., object], *args: np.ndarray, low_dtype: str = "bfloat16"
) -> Colored:
    program = program_from_function(tf.function(function), *args)
    return colored_as_by_grappler(program, low_dtype)


def products(colored: Colored) -> tuple[int, int]:
    """Return how many matrix products may be in 16 bits, and how many there are."""
    counts = [colored.low_ops(op) for op in ("MatMul", "_FusedMatMul", "Einsum")]
    return sum(low for low, _ in counts), sum(of for _, of in counts)


def all_products_low(colored: Colored) -> bool:
    low, of = products(colored)
    return low == of > 0


def weights(*shape: int) -> tf.Variable:
    random = np.random.default_rng(0)
    return tf.Variable(random.normal(size=shape).astype(np.float32) * 0.3)


def op_of(colored: Colored, slot: int) -> str:
    return str(colored.view.nodes[colored.slots.node_of[slot]].op)
