"""Probes to measure, made by hand or from an op in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from grappler_pass.costs.calls import TensorSpec
from grappler_pass.costs.database.price_list import Measured
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Constant, Probe
from tf_amp.measuring.probe_timing import measure_here
from tf_amp.measuring.sandbox.own_thread import run_in_own_thread

Shape = tuple[int, ...]


def probe(
    op: str,
    *shapes: Shape,
    dtype_attr: str = "T",
    indices: Shape | None = None,
    constants: Sequence[tuple[int, ...]] = (),
    **attrs: str,
) -> Probe:
    """Return a probe of floating inputs, then int32 indices, then int32 constants.

    Args:
      op: its name.
      *shapes: of the floating inputs.
      dtype_attr: that takes the dtype.
      indices: shape of an int32 input whose values are to be made up.
      constants: values of vectors; of scalars where there is but one value.
      **attrs: AttrValues as text.
    """
    specs = [TensorSpec(shape, MEASURED_DTYPE) for shape in shapes]
    if indices is not None:
        specs.append(TensorSpec(indices, "int32"))
    given = []
    for values in constants:
        shape = () if len(values) == 1 else (len(values),)
        given.append((len(specs), Constant("int32", shape, values)))
        specs.append(TensorSpec(shape, "int32"))
    return Probe(
        op,
        tuple(sorted(attrs.items())),
        ((dtype_attr, 0),),
        tuple(specs),
        tuple(given),
    )


def matmul(*sizes: int) -> Probe:
    """Return the probe of a product [m, k] x [k, n]."""
    m, k, n = sizes
    return probe(
        "MatMul", (m, k), (k, n), transpose_a="b: false", transpose_b="b: false"
    )


def probe_of_op(build: Callable[[], Any]) -> Probe:
    """Return the probe of the op that `build` adds last to a graph, at its own types.

    Nothing of it is checked: what must not be run can be asked for.
    """
    with tf.Graph().as_default() as graph:
        build()
        op = graph.get_operations()[-1]
        attrs = {
            name: text_format.MessageToString(value, as_one_line=True)
            for name, value in op.node_def.attr.items()
            if not name.startswith("_")
        }
        inputs = tuple(
            TensorSpec(tuple(tensor.shape), tensor.dtype.base_dtype.name)
            for tensor in op.inputs
        )
        return Probe(op.type, tuple(sorted(attrs.items())), (), inputs)


def measure(
    it: Probe, dtypes: Sequence[str], device: str, seconds: float
) -> tuple[Measured, ...]:
    """Measure an op in a thread of its own, as the tuner does."""
    return run_in_own_thread(lambda _: measure_here(it, dtypes, device, seconds), 60.0)
