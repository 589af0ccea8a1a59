"""Run a step once more by itself, and find what first ceased to be finite.

The graph is the one that the runtime has, rewritten and with its casts, cut down to
what leads to the question whether gradients are finite. What came in is given, and
variables have the values they had. Random operations draw anew, from a state of their
own, and of loops and branches only what comes out of them is looked at. From the
question the search goes back through the values that are not finite.

Nothing of the program is touched: what might have effects (queues, iterators, functions
of the program, exchanges with others) is not run, no device but the host's CPU is used,
and what takes too long is given up.

A run for its time (`run`) leaves out what has effects, and makes up what is not known;
here the values are what counts, and a step that needs either is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import REWRITTEN, WATCH
from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    IDENTITY_OPS,
    MERGE_OPS,
    PRODUCT_OPS,
    READ_OPS,
    REF_VARIABLE_OPS,
    SWITCH_OPS,
    VARIABLE_OPS,
)
from grappler_pass.graph.op_traits import has_effects, is_random
from grappler_pass.graph.type_slots import DTYPE_NAMES
from grappler_pass.graph.view import GraphView, Node, Port
from grappler_pass.graph.walks import reached
from tf_amp.errors import AmpError
from tf_amp.run.graph_copy import Content, describe
from tf_amp.run.graph_run import GraphRun
from tf_amp.tracing.stamp_reader import is_gradient, traced_in

# What stands for a branch that is taken, constant folding's anchors included.
_PIVOTS = ("Const", "Identity", "NoOp")
_PASSING = IDENTITY_OPS | SWITCH_OPS
_FLOAT16_MAX = 65504.0
_DTYPES = ("DstT", "T", "dtype")
# Place of the loss scale among the inputs of a watch.
_SCALE = 0


class Found(NamedTuple):
    """Where values ceased to be finite.

    Attributes:
      node: that made the first value that is not finite, or that does not fit.
      dtype: that could not hold it.
      is_scale: whether it is the loss scale itself.
      is_gradient: whether the node is of the backward pass.
    """

    node: NodeDef
    dtype: str
    is_scale: bool = False
    is_gradient: bool = False


class Search:
    """A step that overflowed, with what it was given."""

    def __init__(
        self,
        graph_def: bytes,
        number: str,
        inputs: Sequence[Any],
        variable: Callable[[NodeDef], Any],
    ) -> None:
        """Find what the step computes on the way to the question.

        Args:
          graph_def: the graph, serialized: the one that ran, or as before rewriting.
          number: of the watch whose node got `inputs` when gradients were not finite.
          inputs: the values, in the order of that node's inputs.
          variable: returns the value that a variable had, given a node that is or
            reads its handle; None where unknown.

        Raises:
          NotReplayableError: the graph is not the step's, something that it needs is
            not at hand, or it might have effects.
        """
        graph = GraphDef.FromString(graph_def)
        # While they live, it is known what each node is a gradient of.
        self._traced = traced_in(graph)
        view = GraphView.from_graph_def(graph)
        watch = _watch(view, number)
        ports = watch.inputs[: len(inputs)]
        given = {_source(view, port): i for i, port in enumerate(ports)}
        self._view = view
        self._predicate = _predicate(view, watch)
        self._scale = view.nodes[_source(view, watch.inputs[_SCALE]).node]
        needed = _ancestors(view, self._predicate, given)
        self._replay = Replay(view, needed, given, inputs, variable)

    def first_not_finite(self) -> Found | None:
        """Return what makes the first infinity or NaN; None where there is none.

        Raises:
          NotReplayableError: it takes too long.
        """
        if not math.isfinite(float(self._replay.inputs[_SCALE])):
            return Found(self._scale.proto, "float32", is_scale=True)
        finite = self._replay.nodes_within(float("inf"))
        origin = _origin(self._view, self._predicate, finite, self._replay.needed)
        if origin is None:
            return None
        node = self._view.nodes[origin]
        types = [node.proto.attr[a].type for a in _DTYPES if a in node.proto.attr]
        dtype = DTYPE_NAMES.get(types[0], "") if types else ""
        if node.op == "Cast" and REWRITTEN in node.proto.attr:
            # The cast cannot hold what the node before it has computed.
            node = self._view.nodes[node.inputs[0].node]
        is_of_backward_pass = is_gradient(self._view, node)
        return Found(node.proto, dtype, is_gradient=is_of_backward_pass)

    def too_large(self) -> list[str]:
        """Name what makes or reads values that float16 cannot hold.

        Raises:
          NotReplayableError: it takes too long.
        """
        within = self._replay.nodes_within(_FLOAT16_MAX)
        found = [
            self._view.nodes[i] for i, is_within in within.items() if not is_within
        ]
        names = dict.fromkeys(node.name for node in found)
        for node in found:
            for reader in self._view.readers(Port(node.index, 0)):
                names[self._view.nodes[reader.node].name] = None
        return list(names)

    def feeding(self, name: str) -> list[str]:
        """Name what was rewritten right before a node, as far as the next product."""
        nodes = self._view.nodes

        def low_sources(index: int) -> list[int]:
            sources = (nodes[port.node] for port in nodes[index].inputs)
            low = (source for source in sources if REWRITTEN in source.proto.attr)
            return [source.index for source in low if source.op not in PRODUCT_OPS]

        behind = list(reached([self._view.index[name]], low_sources))[1:]
        written = (nodes[i].name for i in behind)
        return [
            each.partition("/tf_amp_")[0]
            for each in written
            if "/tf_amp_cast_" not in each
        ]


def _watch(view: GraphView, number: str) -> Node:
    for node in view.nodes:
        if WATCH in node.proto.attr and node.proto.attr[WATCH].s.decode() == number:
            return node
    raise NotReplayableError("the graph that ran is not known")


def _source(view: GraphView, port: Port) -> Port:
    """Return the port that a value was made at, behind what just passes it on."""
    node = view.nodes[port.node]
    while node.op in _PASSING:
        port = node.inputs[0]
        node = view.nodes[port.node]
    return port


def _predicate(view: GraphView, watch: Node) -> int:
    """Return the node that decides whether the watch runs.

    Where what it is given comes in without a Switch, it waits for a pivot.
    """
    for index in watch.controls:
        switch = _switch_behind(view, index)
        if switch is not None:
            return switch.inputs[1].node
    for index in reached([watch.index], lambda i: view.nodes[i].sources):
        if view.nodes[index].op in SWITCH_OPS:
            return view.nodes[index].inputs[1].node
    raise NotReplayableError(f"nothing decides whether {watch.name} runs")


def _switch_behind(view: GraphView, pivot: int) -> Node | None:
    """Return the Switch that a pivot goes by; None of another node."""
    node = view.nodes[pivot]
    while node.op in _PIVOTS:
        if len(node.sources) != 1:
            return None
        node = view.nodes[node.sources[0]]
    return node if node.op in SWITCH_OPS else None


def _ancestors(view: GraphView, start: int, given: Mapping[Port, int]) -> list[int]:
    """Return what a node is computed from, inputs first."""

    def sources(index: int) -> list[int]:
        node = view.nodes[index]
        own = (port.node for port in node.inputs if port not in given)
        return [*own, *anchors(view, node)]

    found = set(reached([start], sources))
    return [index for index in view.order if index in found]


def _origin(
    view: GraphView, start: int, finite: Mapping[int, bool], needed: Sequence[int]
) -> int | None:
    """Return the first node of those that lead to what is not finite.

    Followed are values that are not finite, and those that nobody could look at: a
    mask of -inf that a softmax has made finite leads nowhere.
    """
    place = {index: i for i, index in enumerate(needed)}

    def suspects(index: int) -> list[int]:
        before = (port.node for port in view.nodes[index].inputs)
        return [i for i in before if i in place and not finite.get(i, False)]

    ends = [
        index
        for index in reached([start], suspects)
        if finite.get(index) is False
        and not any(_leads_to_infinity(view, i, finite, place) for i in suspects(index))
    ]
    return min(ends, key=place.__getitem__, default=None)


def _leads_to_infinity(
    view: GraphView, index: int, finite: Mapping[int, bool], place: Mapping[int, int]
) -> bool:
    """Return whether a node, or what nobody could look at before it, is not finite."""

    def unseen(i: int) -> list[int]:
        before = (port.node for port in view.nodes[i].inputs)
        return [] if i in finite else [j for j in before if j in place]

    return any(not finite.get(i, True) for i in reached([index], unseen))


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
