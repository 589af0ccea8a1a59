"""Run a step once more by itself, and see where its values cease to be finite.

The graph is the one that the runtime has, rewritten and with its casts, cut down to
what leads to the question whether gradients are finite. What came in is given, and
variables have the values they had. Random operations draw anew, from a state of their
own, and of loops and branches only what comes out of them is looked at.

Nothing of the program is touched: what might have effects (queues, iterators, functions
of the program, exchanges with others) is not run, no device but the host's CPU is used,
and what takes too long is given up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    MERGE_OPS,
    READ_OPS,
    REF_VARIABLE_OPS,
    SWITCH_OPS,
    VARIABLE_OPS,
)
from grappler_pass.graph.op_traits import has_effects, is_random
from grappler_pass.graph.view import GraphView, Node, Port
from tf_amp.errors import AmpError

_BEGINS = ENTER_OPS | SWITCH_OPS
_FLOATING = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
_READS = READ_OPS | {"_ReadVariablesOp"}
# What these hold lives as long as one run.
_OF_ONE_RUN = ("TensorArray", "Stack")

LIMIT_SECONDS = 60.0


class NotReplayableError(AmpError):
    """A step cannot be run again by itself; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step to be run again.

    Attributes:
      view: of the graph that ran.
      needed: numbers of the nodes to compute, inputs first.
      given: ports whose values are known, with their place in `inputs`.
      inputs: these values.
      variable: returns the value that a variable had, given a node that is or reads
        its handle; None where unknown.
    """

    view: GraphView
    needed: Sequence[int]
    given: Mapping[Port, int]
    inputs: Sequence[Any]
    variable: Callable[[NodeDef], Any]


class Replay:
    """The part of the graph that is run, with stand-ins for what it is given.

    Once it is made, nothing more is asked of the program.
    """

    def __init__(self, step: Step) -> None:
        """Copy the part, and read the variables.

        Raises:
          NotReplayableError: something that the step needs is not at hand, or might
            have effects.
        """
        self._step = step
        self._graph_def = GraphDef()
        # Values of placeholders by name; names of handles, and what to begin with.
        self._feed: dict[str, Any] = {}
        self._variables: list[tuple[str, Any]] = []
        for number, value in enumerate(step.inputs):
            self._add_placeholder(_given_name(number), value)
        nodes = [step.view.nodes[index] for index in step.needed]
        for node in nodes:
            _check_effects(node)
        for node in nodes:
            if _is_variable(node):
                self._add_variable(node)
            else:
                self._add_copy(node)

    def nodes_within(self, limit: float) -> dict[int, bool]:
        """Return for the nodes with floating outputs whether these keep within a limit.

        Infinity and NaN do not, whatever the limit. Those in loops and branches are
        left out, since their values cannot be fetched.

        Raises:
          NotReplayableError: it takes too long.
        """
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(self._graph_def, name="")
            flags = _flags(graph, self._step, limit)
            starts = [_assign(graph, *variable) for variable in self._variables]
            feed = {
                graph.get_tensor_by_name(f"{n}:0"): v for n, v in self._feed.items()
            }
            results = _run(graph, starts, list(flags.values()), feed)
        return {i: bool(result) for i, result in zip(flags, results, strict=True)}

    def _add_placeholder(self, name: str, value: Any) -> None:
        node = self._graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        self._feed[name] = value

    def _add_variable(self, node: Node) -> None:
        """Add a private variable in the place of a handle or of a reference."""
        view = self._step.view
        readers = [view.nodes[r.node] for r in view.readers(Port(node.index, 0))]
        values = (self._step.variable(n.proto) for n in (node, *readers))
        value = next((v for v in values if v is not None), None)
        if value is None:
            raise NotReplayableError(f"nothing stands for {node.name} ({node.op})")
        if node.op in REF_VARIABLE_OPS:
            self._add_placeholder(node.name, value)
            return
        made = self._graph_def.node.add(name=node.name, op="VarHandleOp")
        made.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        made.attr["shape"].shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
        made.attr["shared_name"].s = f"tf_amp_replay/{node.name}".encode()
        self._variables.append((node.name, value))

    def _add_copy(self, node: Node) -> None:
        """Add a node as it is, but for what is given and what it waits for."""
        view = self._step.view
        copy = self._graph_def.node.add()
        copy.CopyFrom(node.proto)
        copy.device = ""
        del copy.input[:]
        copy.attr.pop("_class", None)
        for text, port in zip(node.proto.input, node.inputs, strict=False):
            number = self._step.given.get(port)
            copy.input.append(text if number is None else _given_name(number))
        copy.input.extend(f"^{view.nodes[i].name}" for i in anchors(view, node))


def anchors(view: GraphView, node: Node) -> tuple[int, ...]:
    """Return what a constant waits for, which says which loop or branch it is in."""
    if node.inputs:
        return ()
    return tuple(i for i in node.controls if not has_effects(view.nodes[i].op))


def _is_variable(node: Node) -> bool:
    return node.op == "_Arg" or node.op in VARIABLE_OPS


def _check_effects(node: Node) -> None:
    """Raise NotReplayableError if running a node once more might change anything."""
    is_harmless = (
        _is_variable(node)
        or node.op in _READS
        or node.op.startswith(_OF_ONE_RUN)
        or is_random(node.op)
    )
    if not is_harmless and has_effects(node.op):
        raise NotReplayableError(f"{node.name} ({node.op}) may have effects")


def _run(graph: Any, starts: list[Any], fetches: list[Any], feed: Any) -> list[Any]:
    """Run a graph by itself.

    Raises:
      NotReplayableError: it takes too long.
    """
    options = tf.compat.v1.RunOptions(timeout_in_ms=int(LIMIT_SECONDS * 1000))
    with tf.compat.v1.Session(graph=graph, config=_config()) as session:
        session.run(starts)
        try:
            results: list[Any] = session.run(fetches, feed, options=options)
            return results
        except tf.errors.DeadlineExceededError as error:
            raise NotReplayableError(
                f"running the step again takes longer than {LIMIT_SECONDS:g} seconds"
            ) from error


def _given_name(number: int) -> str:
    return f"tf_amp_given_{number}"


def _flags(graph: Any, step: Step, limit: float) -> dict[int, Any]:
    """Return tensors that tell of the nodes in reach whether they keep within it."""
    hidden = hidden_nodes(step.view, step.needed)
    flags: dict[int, Any] = {}
    for index in step.needed:
        if index in hidden:
            continue
        op = graph.get_operation_by_name(step.view.nodes[index].name)
        floating = [t for t in op.outputs if t.dtype in _FLOATING]
        own = [_is_within(tensor, limit) for tensor in floating]
        if own:
            flags[index] = own[0] if len(own) == 1 else tf.reduce_all(tf.stack(own))
    return flags


def _is_within(tensor: Any, limit: float) -> Any:
    is_within = tf.math.is_finite(tensor)
    if limit < tensor.dtype.max:
        is_within &= tf.abs(tensor) <= tf.cast(limit, tensor.dtype)
    return tf.reduce_all(is_within)


def hidden_nodes(view: GraphView, needed: Sequence[int]) -> set[int]:
    """Return the nodes in loops and in branches."""
    hidden: set[int] = set()
    for index in needed:
        node = view.nodes[index]
        before = [*(port.node for port in node.inputs), *anchors(view, node)]
        sources = [view.nodes[i] for i in before]
        if node.op in EXIT_OPS:
            continue
        if node.op in MERGE_OPS:
            is_hidden = any(source.op in ENTER_OPS for source in sources)
        else:
            is_hidden = any(source.index in hidden for source in sources)
        if is_hidden or node.op in _BEGINS:
            hidden.add(index)
    return hidden


def _assign(graph: Any, name: str, value: Any) -> Any:
    handle = graph.get_tensor_by_name(f"{name}:0")
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _config() -> Any:
    """Keep to the host, in threads apart from those of the program."""
    config = tf.compat.v1.ConfigProto(
        allow_soft_placement=True,
        use_per_session_threads=True,
        inter_op_parallelism_threads=1,
        device_count={"GPU": 0},
    )
    rewrites = config.graph_options.rewrite_options
    # A GPU's layout of images has no kernels on the CPU.
    rewrites.optimizers.append("layout")
    rewrites.use_plugin_optimizers = rewrites.OFF
    rewrites.cpu_layout_conversion = rewrites.NCHW_TO_NHWC
    rewrites.meta_optimizer_iterations = rewrites.ONE
    rewrites.min_graph_nodes = -1
    return config
