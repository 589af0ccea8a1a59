"""A copy of a graph that can be run for its time, and touches nothing of the program.

    variables        private ones of the same type and shape, with synthetic values
    data from outside  (arguments, iterators, tables, Python)  synthetic tensors
    effects outside    (prints, files, queues, sends)          left out
    the rest           unchanged

Updates of variables are run, on the private ones: so the time is that of the whole
step. The graph before and the graph after a rewrite come to share variables and data,
which are named after the nodes that they stand for.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from grappler_pass.costs.calls import DTYPE_BYTES, TensorSpec
from grappler_pass.graph.op_table import (
    CONTROL_FLOW_OPS,
    MERGE_OPS,
    REF_VARIABLE_OPS,
    SWITCH_OPS,
)
from grappler_pass.graph.shapes import Shapes, shape_from_proto
from grappler_pass.graph.type_slots import signature_of
from grappler_pass.graph.view import Graph, Item, Node, Port
from tf_amp.errors import AmpError
from tf_amp.run.stand_ins import (
    HANDLES,
    OPAQUE,
    NodeRole,
    roles_for,
    shape_at,
    upper_bounds,
)

STEP = "tf_amp_step"
# What stands for an output whose node rests, and for an input that is waited for.
SOURCE, WAIT = "/tf_amp_source_", "/tf_amp_wait_"
Array = npt.NDArray[Any]
Values = Mapping[str, Array]
FILL = "tf_amp_fill"
VARIABLES = ("VarHandleOp", "VariableV2")


class NotRunnableError(AmpError):
    """A graph cannot be run outside of its program; the message says why."""


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """A graph whose node `STEP` runs all of it once the contents are filled in."""

    graph_def: GraphDef
    contents: tuple[Content, ...]


def sandbox_from_graph(graph_def: GraphDef, item: Item, shapes: Shapes) -> Sandbox:
    """Return a copy of a graph that runs by itself and without a trace.

    Before   _Arg(resource) --> ReadVariableOp --> MatMul --> _Retval, Print
    After    VarHandleOp(private) --> ReadVariableOp --> MatMul --> NoOp, NoOp

    Not done: nodes that nothing fetched or preserved needs are left out; functions are
    called if they do nothing outside, else their results are synthetic. Unknown sizes
    are guessed as for prices.

    Raises:
      NotRunnableError: something needed has no known type or shape.
      GraphError: it is not a graph.
    """
    view = Graph(graph_def, item)
    return _Copy(view, graph_def, shapes).sandbox()


class _Copy:
    """A sandbox under way: nodes made so far, and what stands for each port."""

    def __init__(self, view: Graph, graph_def: GraphDef, shapes: Shapes) -> None:
        self._view = view
        self._given = graph_def
        self._shapes = shapes
        self._role_of = roles_for(graph_def)
        self._bounds = upper_bounds(view, shapes)
        self._made = GraphDef(versions=graph_def.versions, library=graph_def.library)
        self._contents: dict[str, Content] = {}
        # Input strings by port; None where nothing can stand for it.
        self._texts: dict[Port, str | None] = {}

    def sandbox(self) -> Sandbox:
        view = self._view
        live = view.behind(view.roots)
        back_edges = []
        for i in view.order:
            node = view.nodes[i]
            if i not in live:
                continue
            if node.op in MERGE_OPS:
                back_edges.append(node)
            self._copy(node)
        for node in back_edges:
            # The end of a loop may have turned out to have nothing that stands for it.
            if any(self._texts.get(port, "") is None for port in node.inputs):
                raise NotRunnableError(
                    f"nothing can stand for what loops back to {node.name!r}"
                )
        step = self._made.node.add(name=STEP, op="NoOp")
        step.input.extend(f"^{view.nodes[root].name}" for root in view.roots)
        return Sandbox(self._made, tuple(self._contents.values()))

    def _copy(self, node: Node) -> None:
        role = self._role_of(node.proto)
        is_handle = node.op in HANDLES and _output_dtype(node, 0) in OPAQUE
        if role in (NodeRole.HANDLE, NodeRole.VARIABLE) or (
            is_handle and self._variable_behind(node) is not None
        ):
            self._add_variable(node, is_reference=role is NodeRole.VARIABLE)
            return
        # Something stands for every input; the end of a loop comes later.
        ports = node.inputs[:1] if role is NodeRole.PASS else node.inputs
        has_inputs = all(self._texts.get(port, "later") is not None for port in ports)
        if role is NodeRole.SOURCE or not has_inputs:
            self._add_sources(node)
            return
        made = self._add(node, node.op, [self._text(port) for port in node.inputs])
        for name, value in node.proto.attr.items():
            if name != "_class":
                made.attr[name].CopyFrom(value)
        if role is not NodeRole.PASS:
            return
        made.op = "Identity"
        for name in set(made.attr) - {"T"}:
            del made.attr[name]
        controls = (text.lstrip("^").partition(":")[0] for text in made.input[1:])
        made.input[1:] = [f"^{name}" for name in controls]

    def _text(self, port: Port) -> str:
        text = self._texts.get(port)
        if text is not None:
            return text
        name = self._view.nodes[port.node].name
        return f"{name}:{port.output}" if port.output else name

    def _add(self, node: Node, op: str, inputs: Iterable[str] = ()) -> NodeDef:
        controls = [f"^{self._view.nodes[i].name}" for i in node.controls]
        return self._made.node.add(
            name=node.name,
            op=op,
            device=local_device(node.device),
            input=[*inputs, *controls],
        )

    def _add_variable(self, node: Node, *, is_reference: bool) -> None:
        """Put a private variable in place of one, or of the handle of one."""
        found = self._variable_behind(node)
        assert found is not None
        bound = self._bounds.get(Port(node.index, 0), 1)
        device = local_device(node.device)
        content = Content(node.name, *found, device, bound, True, is_reference)
        self._contents[content.name] = content
        made = self._add(node, "VariableV2" if is_reference else "VarHandleOp")
        describe(made, content)

    def _variable_behind(self, node: Node) -> tuple[int, tuple[int, ...]] | None:
        """Return dtype and shape of a variable, or of that behind a handle, if any."""
        attrs = node.proto.attr
        if node.op == "VarHandleOp" or node.op in REF_VARIABLE_OPS:
            return attrs["dtype"].type, _fixed(node, attrs["shape"].shape)
        if "_handle_shapes" in attrs and len(attrs["_handle_shapes"].list.shape) == 1:
            shape = _fixed(node, attrs["_handle_shapes"].list.shape[0])
            return attrs["_handle_dtypes"].list.type[0], shape
        for reader in self._view.readers(Port(node.index, 0)):
            read = self._view.nodes[reader.node]
            if read.op != "ReadVariableOp":
                continue
            shape = self._sizes(Port(read.index, 0))
            return read.proto.attr["dtype"].type, shape
        return None

    def _add_sources(self, node: Node) -> None:
        """Put synthetic tensors in place of a node's outputs; the node itself rests."""
        if node.op in CONTROL_FLOW_OPS and _output_dtype(node, 0) not in OPAQUE:
            raise NotRunnableError(
                f"nothing can stand for what {node.name!r} passes on"
            )
        inputs = [self._after(node, i) for i in range(len(node.inputs))]
        rest = self._add(node, "NoOp", inputs)
        for port in self._view.output_ports(node.index):
            self._texts[port] = self._add_source(port, rest)

    def _after(self, node: Node, position: int) -> str:
        """Return the control input that stands for a data input.

        Only a branch's own output runs when the branch is taken, so a Switch is waited
        for by an Identity behind it.
        """
        port = node.inputs[position]
        producer = self._view.nodes[port.node]
        text = self._texts.get(port, "")
        if producer.op not in SWITCH_OPS or text is None:
            return f"^{producer.name}"
        wait = self._made.node.add(
            name=f"{node.name}{WAIT}{position}",
            op="Identity",
            device=local_device(node.device),
            input=[self._text(port)],
        )
        wait.attr["T"].type = _output_dtype(producer, port.output)
        return f"^{wait.name}"

    def _add_source(self, port: Port, rest: NodeDef) -> str | None:
        node = self._view.nodes[port.node]
        dtype = _output_dtype(node, port.output)
        if dtype in OPAQUE or dtype == types_pb2.DT_INVALID:
            return None
        content = Content(
            f"{node.name}:{port.output}",
            dtype,
            self._sizes(port),
            rest.device,
            self._bounds.get(port, 1),
        )
        self._contents[content.name] = content
        stem = f"{node.name}{SOURCE}{port.output}"
        device = rest.device
        # What the handle waits for puts it into the right loop or branch.
        handle = self._made.node.add(
            name=f"{stem}/handle", op="VarHandleOp", device=device, input=rest.input
        )
        describe(handle, content)
        read = self._made.node.add(
            name=stem, op="ReadVariableOp", device=device, input=[handle.name]
        )
        read.attr["dtype"].type = dtype
        return stem

    def _sizes(self, port: Port) -> tuple[int, ...]:
        """Return the shape of a port with a guess for each unknown size."""
        shape = shape_at(self._view, self._shapes, port)
        if shape is None:
            name = self._view.nodes[port.node].name
            raise NotRunnableError(f"the shape of what {name!r} brings in is not known")
        return TensorSpec(shape, "").dims


def local_device(device: str) -> str:
    """Return a device string without job and task, which a private Session lacks."""
    last = device.rpartition("/")[2]
    return f"/{last}" if last.startswith("device:") else ""


def _fixed(node: Node, proto: TensorShapeProto) -> tuple[int, ...]:
    """Return the shape of a variable, which must be known."""
    shape = shape_from_proto(proto)
    if shape is None or None in shape:
        raise NotRunnableError(f"the shape of the variable {node.name!r} is not known")
    return TensorSpec(shape, "").dims


def _output_dtype(node: Node, output: int) -> int:
    outputs = signature_of(node.proto).outputs
    return outputs[output].dtype if output < len(outputs) else types_pb2.DT_INVALID


class Content(NamedTuple):
    """A private variable: what it holds stands for a variable or an input.

    Attributes:
      name: shared by all nodes that mean it.
      dtype: DataType enum.
      shape: all known; guesses where the program's is not.
      device: that it is held on; blank where TensorFlow is to choose.
      bound: integers are at least 0 and less than this.
      is_state: it stands for a variable of the program, not for data.
      is_reference: a variable of TensorFlow 1, which has no handle.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    device: str = ""
    bound: int = 1
    is_state: bool = False
    is_reference: bool = False

    @property
    def size_bytes(self) -> int:
        """Return its size in memory."""
        name = tf.dtypes.as_dtype(self.dtype).name
        return math.prod(self.shape) * DTYPE_BYTES.get(name, 8)


def filling_graph(
    contents: Iterable[Content], values: Values
) -> tuple[GraphDef, dict[str, Array]]:
    """Return a graph whose node `FILL` fills in all contents, and what to feed it with.

    Values are by name of the contents; others are synthetic.
    """
    feeds: dict[str, Array] = {}
    filled, raw = [], tf.raw_ops
    with tf.Graph().as_default() as graph:
        for content in contents:
            dtype = tf.dtypes.as_dtype(content.dtype)
            given = values.get(content.name)
            given = synthetic(content) if given is None else given
            value = tf.compat.v1.placeholder(dtype)
            feeds[value.op.name] = given.astype(dtype.as_numpy_dtype, copy=False)
            variable = {
                "dtype": content.dtype,
                "shape": given.shape,
                "shared_name": content.name,
            }
            with tf.device(content.device):
                if content.is_reference:
                    held = raw.VariableV2(**variable)
                    filled.append(raw.Assign(ref=held, value=value).op)
                else:
                    handle = raw.VarHandleOp(**variable)
                    filled.append(raw.AssignVariableOp(resource=handle, value=value))
        with tf.control_dependencies(filled):
            tf.no_op(FILL)
    return graph.as_graph_def(), feeds


def synthetic(content: Content) -> Array:
    """Return values for what is not known: floats of both signs, valid integers.

    Truth values are true, as of a question whether all is well.
    """
    dtype = tf.dtypes.as_dtype(content.dtype)
    if dtype == tf.string:
        return np.full(content.shape, b"", object)
    if dtype.is_bool:
        return np.ones(content.shape, np.bool_)
    random = np.random.default_rng(zlib.crc32(content.name.encode()))
    if dtype.is_floating or dtype.is_complex:
        return random.standard_normal(content.shape).astype(dtype.as_numpy_dtype)
    return random.integers(0, max(content.bound, 1), content.shape).astype(
        dtype.as_numpy_dtype
    )


def describe(variable: NodeDef, content: Content) -> None:
    """Let a node that is a variable, or the handle of one, mean `content`."""
    variable.attr["dtype"].type = content.dtype
    variable.attr["shape"].shape.SetInParent()
    for size in content.shape:
        variable.attr["shape"].shape.dim.add(size=size)
    variable.attr["shared_name"].s = content.name.encode()
