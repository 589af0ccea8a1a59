"""A copy of a graph that can be run for its time, and touches nothing of the program.

    variables        private ones of the same type and shape, with synthetic values
    data from outside  (arguments, iterators, tables, Python)  synthetic tensors
    effects outside    (prints, files, queues, sends)          left out
    the rest           unchanged

Which a node is its op's definition says: an op that does not declare itself stateful
computes. What neighbors show of synthetic data counts: shapes, and what integers must
be less than. Updates of variables are run, on the private ones: so the time is that of
the whole step. The graph before and the graph after a rewrite come to share variables
and data, which are named after the nodes that they stand for.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from grappler_pass.costs.calls import DTYPE_BYTES, TensorSpec
from grappler_pass.functions.conversion import library_of
from grappler_pass.graph import op_table
from grappler_pass.graph.op_traits import is_random, is_update
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, shape_from_proto
from grappler_pass.graph.type_slots import op_def_of, signature_of
from grappler_pass.graph.view import Graph, Item, Node, Port
from grappler_pass.graph.walks import function_attrs
from tf_amp.errors import AmpError

_TEXT = types_pb2.DT_STRING
OPAQUE = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})
# Their resource may be the handle of a variable.
HANDLES = frozenset({"_Arg", "Placeholder", "VarHandleOp"})
# These only watch what goes through; a synthetic value must not stop the step.
_WATCHING = frozenset(
    """CheckNumerics CheckNumericsV2 DebugIdentity DebugIdentityV2 DebugIdentityV3
    Print""".split()
)
# What a caller brings in or takes away; a default is computed.
_OUTSIDE = (op_table.INPUT_OPS | op_table.RESULT_OPS) - {"PlaceholderWithDefault"}
# Their OpDefs claim that they have no state, and yet they reach out of the graph.
_UNDECLARED = frozenset(
    """Abort DebugNanCount DebugNumericSummary DebugNumericSummaryV2 MatchingFiles
    PyFuncStateless ReadFile XlaLaunch""".split()
)
# Stateful, but the state is a private variable, or lives no longer than one step.
_PRIVATE_STATE = (
    op_table.READ_OPS
    | op_table.LOOK_OPS
    | set(
        """DestroyTemporaryVariable IsVariableInitialized RngReadAndSkip RngSkip
    StackCloseV2 StackPopV2 StackPushV2 StackV2 TemporaryVariable""".split()
    )
)
_PRIVATE_STATE_PREFIXES = ("TensorArray", "CudnnRNN")
# Ops that do what the functions they call do, and nothing else.
_CALLS = op_table.CALL_OPS.keys() | {"MapDefun"}
# Ops whose output holds values of these inputs, moved but not changed (or by an
# offset that is only for negative ones).
_PASS = (
    op_table.FORWARDING_OPS
    | op_table.MERGE_OPS
    | op_table.VIEW_OPS
    | set(
        """AddV2 BroadcastTo Cast ConcatV2 Maximum Minimum Pack ReadVariableOp Select
    SelectV2 StridedSlice Tile Transpose Unpack""".split()
    )
)
# Ops with results of unknown shape that have, as a rule, the shape of this input.
_SHAPED_LIKE = {"LookupTableFind": 1, "LookupTableFindV2": 1}
_Bound = Callable[[Graph, Shapes, Node], "int | None"]


class NodeRole(enum.Enum):
    """The part of a node in the sandbox."""

    COMPUTE = "runs unchanged"
    PASS = "passes its first input"
    HANDLE = "the handle of a variable, replaced by a private one's"
    VARIABLE = "holds its value itself; a private one of the same type"
    SOURCE = "left out, with synthetic tensors in place of its outputs"


def roles_for(graph_def: GraphDef) -> Callable[[NodeDef], NodeRole]:
    """Return a function from nodes of `graph_def` to their roles."""
    library = library_of(graph_def)
    harmless: dict[str, bool] = {}

    def role_of(node: NodeDef) -> NodeRole:
        if node.op not in _CALLS and node.op not in library:
            return role_of_op(node.op)
        # An op without a definition is a call by name.
        named = [node.op] if op_def_of(node.op) is None else []
        called = [*named, *(function.name for function in function_attrs(node))]
        return NodeRole.COMPUTE if all(map(is_harmless, called)) else NodeRole.SOURCE

    def is_harmless(name: str) -> bool:
        """Return whether all that a function does may be done in the sandbox."""
        if name not in harmless:
            harmless[name] = True  # a recursive call adds nothing
            function = library.get(name)
            harmless[name] = function is not None and all(
                role_of(node) is NodeRole.COMPUTE for node in function.node_def
            )
        return harmless[name]

    return role_of


@functools.cache
def role_of_op(op: str) -> NodeRole:
    """Return the role of an op that calls no function."""
    if op in op_table.REF_VARIABLE_OPS:
        return NodeRole.VARIABLE
    if op in _WATCHING:
        return NodeRole.PASS
    if op == "VarHandleOp":
        return NodeRole.HANDLE
    op_def = op_def_of(op)
    if op_def is None or op in _OUTSIDE or op in _UNDECLARED:
        return NodeRole.SOURCE
    takes = {arg.type for arg in op_def.input_arg}
    makes = {arg.type for arg in op_def.output_arg}
    # Numbers that are made of strings cannot be synthetic; nor are functions known.
    reads_text = _TEXT in takes and makes - {_TEXT}
    if reads_text or any("func" in attr.type for attr in op_def.attr):
        return NodeRole.SOURCE
    arguments = (*op_def.input_arg, *op_def.output_arg)
    # A handle of TensorFlow 1 that is no variable's.
    has_reference = any(
        arg.is_ref and arg.type in (_TEXT, *OPAQUE) for arg in arguments
    )
    if not (op_def.is_stateful or has_reference):
        return NodeRole.COMPUTE
    has_private_state = (
        op in _PRIVATE_STATE
        or op.startswith(_PRIVATE_STATE_PREFIXES)
        or is_update(op)
        or (is_random(op) and not makes & OPAQUE)
    )
    return NodeRole.COMPUTE if has_private_state else NodeRole.SOURCE


def shape_at(view: Graph, shapes: Shapes, port: Port) -> Shape | None:
    """Return the shape of a port, or what a neighbor shows of it; None: unknown."""
    shape = known_shape(shapes, view, port)
    node = view.nodes[port.node]
    if shape is None and node.op in _SHAPED_LIKE:
        shape = known_shape(shapes, view, node.inputs[_SHAPED_LIKE[node.op]])
    for reader in view.readers(port):
        if shape is None and view.nodes[reader.node].op == "EnsureShape":
            shape = known_shape(shapes, view, Port(reader.node, 0))
    return shape


def upper_bounds(view: Graph, shapes: Shapes) -> Mapping[Port, int]:
    """Return by port the bound of its integers, where a reader shows one."""
    bounds: dict[Port, int] = {}
    for node in view.nodes:
        position, bound_of = _INDEXED.get(node.op, (0, None))
        bound = bound_of and bound_of(view, shapes, node)
        if not bound:
            continue
        waiting = [node.inputs[position]]
        while waiting:
            port = waiting.pop()
            if bounds.get(port, bound + 1) <= bound:
                continue
            bounds[port] = bound
            producer = view.nodes[port.node]
            if producer.op in _PASS:
                waiting.extend(producer.inputs)
    return bounds


def _rows(view: Graph, shapes: Shapes, node: Node) -> int | None:
    """Return how many rows a gather chooses from."""
    shape = known_shape(shapes, view, node.inputs[0])
    axis = _constant(view, node.inputs[2]) if len(node.inputs) > 2 else 0
    if not shape or axis is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def _variable_rows(view: Graph, shapes: Shapes, node: Node) -> int | None:
    """Return how many rows the variable behind a handle has."""
    handle = view.nodes[node.inputs[0].node]
    while handle.op in op_table.FORWARDING_OPS:
        handle = view.nodes[handle.inputs[0].node]
    attrs = handle.proto.attr
    if handle.op == "VarHandleOp":
        shape = shape_from_proto(attrs["shape"].shape)
    elif "_handle_shapes" in attrs and attrs["_handle_shapes"].list.shape:
        shape = shape_from_proto(attrs["_handle_shapes"].list.shape[0])
    else:
        return None
    return shape[0] if shape else None


def _last_size(view: Graph, shapes: Shapes, node: Node) -> int | None:
    return (known_shape(shapes, view, node.inputs[0]) or (None,))[-1]


# Op -> which input is the index, and what it must be less than.
_INDEXED: Mapping[str, tuple[int, _Bound]] = {
    "Gather": (1, _rows),
    "GatherV2": (1, _rows),
    "OneHot": (0, lambda view, _, node: _constant(view, node.inputs[1])),
    "ResourceGather": (1, _variable_rows),
    "ResourceScatterAdd": (1, _variable_rows),
    "ResourceScatterSub": (1, _variable_rows),
    "ResourceScatterUpdate": (1, _variable_rows),
    "SparseSoftmaxCrossEntropyWithLogits": (1, _last_size),
    "UnsortedSegmentSum": (1, lambda view, _, node: _constant(view, node.inputs[2])),
}


def _constant(view: Graph, port: Port) -> int | None:
    node = view.nodes[port.node]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.proto.attr["value"].tensor)
    return int(value.item()) if value.size == 1 else None


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
        nodes = [view.nodes[index] for index in view.order if index in live]
        for node in nodes:
            self._copy(node)
        back_edges = (node for node in nodes if node.op in op_table.MERGE_OPS)
        for node in back_edges:
            # The end of a loop may have turned out to have nothing that stands for it.
            if None in (self._texts.get(port, "") for port in node.inputs):
                raise NotRunnableError(
                    f"nothing can stand for what loops back to {node.name!r}"
                )
        step = self._made.node.add(name=STEP, op="NoOp")
        step.input.extend(f"^{view.nodes[root].name}" for root in view.roots)
        return Sandbox(self._made, tuple(self._contents.values()))

    def _copy(self, node: Node) -> None:
        role, variable = self._role_of(node.proto), None
        is_handle = node.op in HANDLES and _output_dtype(node, 0) in OPAQUE
        is_reference = role is NodeRole.VARIABLE
        if is_handle or is_reference or role is NodeRole.HANDLE:
            variable = self._variable_behind(node)
        if variable is not None:
            # A private variable in place of one, or of the handle of one.
            bound = self._bounds.get(Port(node.index, 0), 1)
            device = local_device(node.device)
            content = Content(node.name, *variable, device, bound, True, is_reference)
            self._contents[content.name] = content
            op = "VariableV2" if is_reference else "VarHandleOp"
            describe(self._add(node, op), content)
            return
        # Something stands for every input; the end of a loop comes later.
        ports = node.inputs[:1] if role is NodeRole.PASS else node.inputs
        has_inputs = all(self._texts.get(port, "later") is not None for port in ports)
        if role is NodeRole.SOURCE or not has_inputs:
            self._add_sources(node)
            return
        op, texts = node.op, [self._text(port) for port in node.inputs]
        kept = set(node.proto.attr) - {"_class"}
        if role is NodeRole.PASS:
            # What it does not pass is waited for.
            op, kept = "Identity", kept & {"T"}
            texts[1:] = [f"^{text.partition(':')[0]}" for text in texts[1:]]
        made = self._add(node, op, texts)
        for name in kept:
            made.attr[name].CopyFrom(node.proto.attr[name])

    def _text(self, port: Port) -> str:
        return self._texts.get(port) or self._view.text(port)

    def _add(self, node: Node, op: str, inputs: Iterable[str] = ()) -> NodeDef:
        controls = [f"^{self._view.nodes[i].name}" for i in node.controls]
        return self._made.node.add(
            name=node.name,
            op=op,
            device=local_device(node.device),
            input=[*inputs, *controls],
        )

    def _variable_behind(self, node: Node) -> tuple[int, tuple[int, ...]] | None:
        """Return dtype and shape of a variable, or of that behind a handle, if any."""
        attrs = node.proto.attr
        if node.op == "VarHandleOp" or node.op in op_table.REF_VARIABLE_OPS:
            return attrs["dtype"].type, _fixed(node, attrs["shape"].shape)
        if "_handle_shapes" in attrs and len(attrs["_handle_shapes"].list.shape) == 1:
            shape = _fixed(node, attrs["_handle_shapes"].list.shape[0])
            return attrs["_handle_dtypes"].list.type[0], shape
        for reader in self._view.readers(Port(node.index, 0)):
            read = self._view.nodes[reader.node]
            if read.op == "ReadVariableOp":
                shape = self._sizes(Port(read.index, 0))
                return read.proto.attr["dtype"].type, shape
        return None

    def _add_sources(self, node: Node) -> None:
        """Put synthetic tensors in place of a node's outputs; the node itself rests."""
        if (
            node.op in op_table.CONTROL_FLOW_OPS
            and _output_dtype(node, 0) not in OPAQUE
        ):
            raise NotRunnableError(
                f"nothing can stand for what {node.name!r} passes on"
            )
        inputs = [self._after(node, i) for i in range(len(node.inputs))]
        rest = self._add(node, "NoOp", inputs)
        for port in self._view.output_ports(node.index):
            dtype = _output_dtype(node, port.output)
            if dtype in OPAQUE or dtype == types_pb2.DT_INVALID:
                self._texts[port] = None
                continue
            content = Content(
                f"{node.name}:{port.output}",
                dtype,
                self._sizes(port),
                rest.device,
                self._bounds.get(port, 1),
            )
            self._contents[content.name] = content
            stem, device = f"{node.name}{SOURCE}{port.output}", rest.device
            # What the handle waits for puts it into the right loop or branch.
            handle = self._made.node.add(
                name=f"{stem}/handle", op="VarHandleOp", device=device, input=rest.input
            )
            describe(handle, content)
            read = self._made.node.add(
                name=stem, op="ReadVariableOp", device=device, input=[handle.name]
            )
            read.attr["dtype"].type = dtype
            self._texts[port] = stem

    def _after(self, node: Node, position: int) -> str:
        """Return the control input that stands for a data input.

        Only a branch's own output runs when the branch is taken, so a Switch is waited
        for by an Identity behind it.
        """
        port = node.inputs[position]
        producer = self._view.nodes[port.node]
        text = self._texts.get(port, "")
        if producer.op not in op_table.SWITCH_OPS or text is None:
            return f"^{producer.name}"
        wait = self._made.node.add(
            name=f"{node.name}{WAIT}{position}",
            op="Identity",
            device=local_device(node.device),
            input=[self._text(port)],
        )
        wait.attr["T"].type = _output_dtype(producer, port.output)
        return f"^{wait.name}"

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
    variable.attr["shape"].shape.CopyFrom(tf.TensorShape(content.shape).as_proto())
    variable.attr["shared_name"].s = content.name.encode()
