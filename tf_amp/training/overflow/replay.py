"""Run a step once more by itself, and see where its values cease to be finite.

The graph is the one that the runtime has, rewritten and with its casts, cut down to
what leads to the question whether gradients are finite. What came in is given, and
variables have the values they had. Random operations draw anew, from a state of their
own, and of loops and branches only what comes out of them is looked at.

Nothing of the program is touched: what might have effects (queues, iterators, functions
of the program, exchanges with others) is not run, no device but the host's CPU is used,
and what takes too long is given up.

This is no sandbox of `measuring`, which is run for its time: that one leaves out what
has effects, and makes up what is not known, while here the values are what counts, and
a step that needs either is refused. Both fill in private variables alike.
"""

from __future__ import annotations

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
from tf_amp.run.graph_copy import Content, describe
from tf_amp.run.graph_run import GraphRun

_BEGINS = ENTER_OPS | SWITCH_OPS
_FLOATING = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
_READS = READ_OPS | {"_ReadVariablesOp"}
# What these hold lives as long as one run.
_OF_ONE_RUN = ("TensorArray", "Stack")

LIMIT_SECONDS = 60.0


class NotReplayableError(AmpError):
    """A step cannot be run again by itself; the message says why."""


class Replay:
    """The part of a graph that is run again, with stand-ins for what it is given.

    Once it is made, nothing more is asked of the program.

    Attributes:
      needed: numbers of the nodes that are computed.
      inputs: values that are given.
    """

    def __init__(
        self,
        view: GraphView,
        needed: Sequence[int],
        given: Mapping[Port, int],
        inputs: Sequence[Any],
        variable: Callable[[NodeDef], Any],
    ) -> None:
        """Copy the part, and read the variables.

        Args:
          view: of the graph that ran.
          needed: numbers of the nodes to compute, inputs first.
          given: ports whose values are known, with their place in `inputs`.
          inputs: these values.
          variable: returns the value that a variable had, given a node that is or reads
            its handle; None where unknown.

        Raises:
          NotReplayableError: something that the step needs is not at hand, or might
            have effects.
        """
        self.needed, self.inputs = needed, inputs
        self._view, self._given, self._variable = view, given, variable
        self._graph_def = GraphDef()
        # Values of placeholders by name; private variables, and what they begin with.
        self._feed: dict[str, Any] = {}
        self._contents: list[Content] = []
        self._values: dict[str, Any] = {}
        for number, value in enumerate(inputs):
            self._add_placeholder(_given_name(number), value)
        nodes = [view.nodes[index] for index in needed]
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
        graphs = {"": self._graph_def}
        with GraphRun(graphs, self._contents, self._values, config=_config()) as run:
            with run.graph.as_default():
                flags = _flags(run.graph, self._view, self.needed, limit)
            feed = {run.tensor(name): value for name, value in self._feed.items()}
            results = _fetched(run, list(flags.values()), feed)
        return {i: bool(result) for i, result in zip(flags, results, strict=True)}

    def _add_placeholder(self, name: str, value: Any) -> None:
        node = self._graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        self._feed[name] = value

    def _add_variable(self, node: Node) -> None:
        """Add a private variable in the place of a handle or of a reference."""
        view = self._view
        readers = [view.nodes[r.node] for r in view.readers(Port(node.index, 0))]
        values = (self._variable(n.proto) for n in (node, *readers))
        value = next((v for v in values if v is not None), None)
        if value is None:
            raise NotReplayableError(f"nothing stands for {node.name} ({node.op})")
        if node.op in REF_VARIABLE_OPS:
            self._add_placeholder(node.name, value)
            return
        name, shape = f"tf_amp_replay/{node.name}", tuple(value.shape)
        content = Content(name, tf.as_dtype(value.dtype).as_datatype_enum, shape)
        describe(self._graph_def.node.add(name=node.name, op="VarHandleOp"), content)
        self._contents.append(content)
        self._values[name] = value

    def _add_copy(self, node: Node) -> None:
        """Add a node as it is, but for what is given and what it waits for."""
        copy = self._graph_def.node.add()
        copy.CopyFrom(node.proto)
        copy.device = ""
        del copy.input[:]
        copy.attr.pop("_class", None)
        for text, port in zip(node.proto.input, node.inputs, strict=False):
            number = self._given.get(port)
            copy.input.append(text if number is None else _given_name(number))
        waited_for = (self._view.nodes[i] for i in anchors(self._view, node))
        copy.input.extend(f"^{each.name}" for each in waited_for)


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


def _fetched(run: GraphRun, fetches: list[Any], feed: Any) -> list[Any]:
    """Return values of a run; raise NotReplayableError if it takes too long."""
    try:
        return list(run.fetch(fetches, feed, limit_seconds=LIMIT_SECONDS))
    except tf.errors.DeadlineExceededError as error:
        raise NotReplayableError(
            f"running the step again takes longer than {LIMIT_SECONDS:g} seconds"
        ) from error


def _given_name(number: int) -> str:
    return f"tf_amp_given_{number}"


def _flags(
    graph: Any, view: GraphView, needed: Sequence[int], limit: float
) -> dict[int, Any]:
    """Return, for the nodes in reach, tensors that say whether they keep within it."""
    hidden = hidden_nodes(view, needed)
    flags: dict[int, Any] = {}
    for index in needed:
        if index in hidden:
            continue
        op = graph.get_operation_by_name(view.nodes[index].name)
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


def _config() -> Any:
    """Keep to the host, in other threads than those of the program."""
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
