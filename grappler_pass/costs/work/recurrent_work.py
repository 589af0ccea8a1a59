"""Work of recurrent kernels: the products inside of them, step after step.

A step multiplies inputs `[batch, inputs]` and state `[batch, units]` by weights for all
gates, 2 * batch * (inputs + units) * gates * units flops, and computes the gates of
each unit. The way back multiplies the gradient of the gates by the same weights, and
what went into them by that gradient: twice the flops. cuDNN multiplies the inputs of
all steps at once.

References: Appleyard et al., Optimizing Performance of Recurrent Neural Networks on
    GPUs, arXiv:1604.01946; tensorflow/core/kernels/rnn/lstm_ops.h and gru_ops.h.
"""

from __future__ import annotations

from typing import NamedTuple

from grappler_pass.costs.calls import DTYPE_BYTES, OpCall
from grappler_pass.costs.work.piece import Work, dims_of, elementwise, text
from grappler_pass.costs.work.product_work import matrix_product
from grappler_pass.graph.op_table import RECURRENT_OPS

# Mode of cuDNN, and TensorFlow's cells -> gates, of them sigmoids, and hyperbolic
# tangents of either gates or states.
_LSTM = (4, 3, 2)
_GRU = (3, 2, 1)
_MODES = {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": (1, 0, 1), "rnn_relu": (1, 0, 0)}

BLOCK_LSTM = frozenset(op for op in RECURRENT_OPS if op.startswith("BlockLSTM"))
CUDNN = frozenset(op for op in RECURRENT_OPS if op.startswith("CudnnRNN"))


class _Steps(NamedTuple):
    """Products of `[m, k]` and `[k, n]`, as many as there are steps."""

    m: int
    k: int
    n: int
    steps: int = 1

    def forward(self, dtype: str, layout: str = "") -> Work:
        """Return the work of the products."""
        m, k, n, steps = self
        moved = float(m * k + k * n + m * n) * DTYPE_BYTES[dtype]
        return matrix_product(m, k, n, moved, layout=layout)._replace(
            times=float(steps)
        )

    def data_gradient(self, dtype: str) -> Work:
        """Return the work of the gradients of the left operands."""
        return _Steps(self.m, self.n, self.k, self.steps).forward(dtype, ".tb")

    def weight_gradient(self, dtype: str) -> Work:
        """Return the work of the gradients of the right operands."""
        return _Steps(self.k, self.m, self.n, self.steps).forward(dtype, ".ta")


def block_lstm(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return an LSTM over `[time, batch, inputs]`, or its gradient, step by step."""
    time, batch, _ = dims_of(call.inputs[1], 3)
    inside, width = dims_of(call.inputs[4], 2)
    product = _Steps(batch, inside, width, time)
    cells = _cells(_LSTM, batch * width // 4, dtype, time)
    if "Grad" not in call.op:
        return (product.forward(dtype), *cells)
    return (product.data_gradient(dtype), product.weight_gradient(dtype), *cells)


def lstm_cell(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return one step of an LSTM."""
    batch, _ = dims_of(call.inputs[0], 2)
    product = _Steps(batch, *dims_of(call.inputs[3], 2))
    cells = _cells(_LSTM, batch * product.n // 4, dtype)
    return (product.forward(dtype), *cells)


def lstm_cell_gradient(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the gradient of an LSTM's gates; their products are nodes of their own."""
    gates = call.outputs[1].elements
    # All that is read and written, beside the gates: as much again.
    return (elementwise("TanhGrad", gates, dtype, tensors=4),)


def gru_cell(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return one step of a GRU, or the gradients of its input and state."""
    batch, _ = dims_of(call.inputs[0], 2)
    products = [_Steps(batch, *dims_of(each, 2)) for each in call.inputs[2:4]]
    cells = _cells(_GRU, batch * products[1].n, dtype)
    work = _Steps.data_gradient if "Grad" in call.op else _Steps.forward
    return (*(work(each, dtype) for each in products), *cells)


def cudnn(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return cuDNN's layers over `[time, batch, inputs]`, or their gradients."""
    time, batch, inputs = dims_of(call.inputs[0], 3)
    if not call.attrs.get("time_major", True):
        time, batch = batch, time
    stacked, _, state = dims_of(call.inputs[1], 3)
    # An LSTM with a projection has more units than its state shows.
    units = max((state, *call.inputs[2].dims[2:]))
    kind = _MODES.get(text(call.attrs.get("rnn_mode")), _LSTM)
    directions = 2 if text(call.attrs.get("direction")) == "bidirectional" else 1
    deeper, width = stacked - directions, kind[0] * units
    products = (
        (_Steps(time * batch, inputs, width), directions),
        (_Steps(time * batch, directions * state, width), deeper),
        (_Steps(batch, state, width, time), stacked),
    )
    works: list[Work] = []
    for product, count in products:
        each = [product.forward(dtype)]
        if "Backprop" in call.op:
            # The gradient of the weights is one product for all steps.
            at_once = _Steps(product.m * product.steps, product.k, product.n)
            each = [product.data_gradient(dtype), at_once.weight_gradient(dtype)]
        if count > 0:
            works += (work._replace(times=count * work.times) for work in each)
    return (*works, *_cells(kind, batch * units, dtype, time * stacked))


def _cells(
    kind: tuple[int, int, int], units: int, dtype: str, steps: int = 1
) -> tuple[Work, ...]:
    """Return the activations, which are computed where their product lies."""
    _, sigmoids, tanhs = kind
    counts = {"fused.Sigmoid": sigmoids, "fused.Tanh": tanhs}
    return tuple(
        elementwise(op_class, count * units, dtype)._replace(
            bytes_moved=0.0,
            times=float(steps),
        )
        for op_class, count in counts.items()
        if count
    )
