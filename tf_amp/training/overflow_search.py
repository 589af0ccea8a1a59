"""Run a step once more by itself, and find what first ceased to be finite.

The graph is the one that the runtime has, rewritten and with its casts, cut down to
what leads to the question whether gradients are finite. What came in is given, and
variables have the values they had. Random operations draw again, from a state of their
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
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.graph.walks import reached
from tf_amp.errors import AmpError
from tf_amp.run.graph_copy import Content, describe
from tf_amp.run.graph_run import GraphRun
from tf_amp.tracing.stamp_reader import is_gradient, traced_in

# What stands for a branch that is taken, constant folding's anchors included.
_PIVOTS = ("Const", "Identity", "NoOp")
_PASSING = IDENTITY_OPS | SWITCH_OPS
_VARIABLES = VARIABLE_OPS | {"_Arg"}
# What may be run once more, though it is stateful; and how names of such ops begin, of
# what lives as long as one run.
_HARMLESS = _VARIABLES | READ_OPS | {"_ReadVariablesOp"}
_OF_ONE_RUN = ("TensorArray", "Stack")
_BEGINS = ENTER_OPS | SWITCH_OPS
_FLOATING = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
_FLOAT16_MAX = 65504.0
_DTYPES = ("DstT", "T", "dtype")
# Place of the loss scale among the inputs of a watch.
_SCALE = 0

LIMIT_SECONDS = 60.0


class NotReplayableError(AmpError):
    """A step cannot be run again by itself; the message says why."""


class NotFinite(NamedTuple):
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
    """A step that overflowed, with what it was given.

    Once it is made, nothing more is asked of the program.
    """

    def __init__(
        self,
        graph_def: bytes,
        number: str,
        inputs: Sequence[Any],
        variable: Callable[[NodeDef], Any],
    ) -> None:
        """Copy what the step computes on the way to the question.

        Args:
          graph_def: the graph, serialized: the one that ran, or as before rewriting.
          number: of the watch whose node got `inputs` when gradients were not finite.
          inputs: the values, in the order of that node's inputs.
          variable: returns the value that a variable had, given a node that is or
            reads its handle; None where unknown.

        Raises:
          NotReplayableError: the graph is not the step's, something that it needs is
            not available, or it might have effects.
        """
        graph = GraphDef.FromString(graph_def)
        # While they live, it is known what each node is a gradient of.
        self._traced = traced_in(graph)
        self._view = view = Graph(graph)
        watched = (n for n in view.nodes if WATCH in n.proto.attr)
        same = (n for n in watched if n.proto.attr[WATCH].s.decode() == number)
        watch = next(same, None)
        if watch is None:
            raise NotReplayableError("the graph that ran is not known")
        ports = watch.inputs[: len(inputs)]
        given = {_source(view, port): place for place, port in enumerate(ports)}
        self._scale = view.nodes[_source(view, watch.inputs[_SCALE]).node]
        self._scale_value = float(inputs[_SCALE])
        self._predicate = _predicate(view, watch)

        def sources(index: int) -> list[int]:
            node = view.nodes[index]
            own = (port.node for port in node.inputs if port not in given)
            return [*own, *anchors(view, node)]

        behind = set(reached([self._predicate], sources))
        # Inputs first.
        self._needed = [index for index in view.order if index in behind]
        nodes = [view.nodes[index] for index in self._needed]
        for node in nodes:
            is_own = node.op.startswith(_OF_ONE_RUN) or is_random(node.op)
            if has_effects(node.op) and node.op not in _HARMLESS and not is_own:
                raise NotReplayableError(f"{node.name} ({node.op}) may have effects")
        self._graph_def = GraphDef()
        # Values of placeholders by name; private variables, and what they begin with.
        self._feed: dict[str, Any] = {}
        self._contents: list[Content] = []
        self._values: dict[str, Any] = {}
        for place, value in enumerate(inputs):
            self._add_placeholder(_given_name(place), value)
        for node in nodes:
            if node.op in _VARIABLES:
                self._add_variable(node, variable)
            else:
                self._add_copy(node, given)

    def first_not_finite(self) -> NotFinite | None:
        """Return what makes the first infinity or NaN; None where there is none.

        Raises:
          NotReplayableError: it takes too long.
        """
        if not math.isfinite(self._scale_value):
            return NotFinite(self._scale.proto, "float32", is_scale=True)
        origin = self._origin(self._nodes_within(math.inf))
        if origin is None:
            return None
        node = self._view.nodes[origin]
        types = [node.proto.attr[a].type for a in _DTYPES if a in node.proto.attr]
        dtype = DTYPE_NAMES.get(types[0], "") if types else ""
        if node.op == "Cast" and REWRITTEN in node.proto.attr:
            # The cast cannot hold what the node before it has computed.
            node = self._view.nodes[node.inputs[0].node]
        return NotFinite(node.proto, dtype, is_gradient=is_gradient(self._view, node))

    def too_large(self) -> list[str]:
        """Name what makes or reads values that float16 cannot hold.

        Raises:
          NotReplayableError: it takes too long.
        """
        nodes, within = self._view.nodes, self._nodes_within(_FLOAT16_MAX)
        outside = [index for index, is_within in within.items() if not is_within]
        ports = (Port(index, 0) for index in outside)
        readers = [r.node for port in ports for r in self._view.readers(port)]
        return list(dict.fromkeys(nodes[index].name for index in [*outside, *readers]))

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

    def _add_placeholder(self, name: str, value: Any) -> None:
        node = self._graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        self._feed[name] = value

    def _add_variable(self, node: Node, variable: Callable[[NodeDef], Any]) -> None:
        """Add a private variable in the place of a handle or of a reference."""
        view = self._view
        readers = [view.nodes[r.node] for r in view.readers(Port(node.index, 0))]
        values = (variable(n.proto) for n in (node, *readers))
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

    def _add_copy(self, node: Node, given: Mapping[Port, int]) -> None:
        """Add a node unchanged, but for what is given and what it waits for."""
        copy = self._graph_def.node.add()
        copy.CopyFrom(node.proto)
        copy.device = ""
        del copy.input[:]
        copy.attr.pop("_class", None)
        for text, port in zip(node.proto.input, node.inputs, strict=False):
            place = given.get(port)
            copy.input.append(text if place is None else _given_name(place))
        waited_for = (self._view.nodes[i] for i in anchors(self._view, node))
        copy.input.extend(f"^{each.name}" for each in waited_for)

    def _nodes_within(self, limit: float) -> dict[int, bool]:
        """Return for the nodes with floating outputs whether these keep within a limit.

        Infinity and NaN do not, whatever the limit. Those in loops and branches are
        left out, since their values cannot be fetched.

        Raises:
          NotReplayableError: it takes too long.
        """

        def is_within(tensor: Any) -> Any:
            fits = tf.math.is_finite(tensor)
            if limit < tensor.dtype.max:
                fits &= tf.abs(tensor) <= tf.cast(limit, tensor.dtype)
            return tf.reduce_all(fits)

        graphs = {"": self._graph_def}
        hidden = hidden_nodes(self._view, self._needed)
        flags: dict[int, Any] = {}
        with GraphRun(graphs, self._contents, self._values, config=_config()) as run:
            with run.graph.as_default():
                for index in (i for i in self._needed if i not in hidden):
                    outputs = run.operation(self._view.nodes[index].name).outputs
                    floating = [t for t in outputs if t.dtype in _FLOATING]
                    if floating:
                        flags[index] = tf.reduce_all([*map(is_within, floating)])
            feed = {run.tensor(name): value for name, value in self._feed.items()}
            try:
                fits = run.fetch([*flags.values()], feed, limit_seconds=LIMIT_SECONDS)
            except tf.errors.DeadlineExceededError as error:
                raise NotReplayableError(
                    "running the step again takes longer than "
                    f"{LIMIT_SECONDS:g} seconds"
                ) from error
        return dict(zip(flags, map(bool, fits), strict=True))

    def _origin(self, finite: Mapping[int, bool]) -> int | None:
        """Return the first node of those that lead to what is not finite.

        Followed are values that are not finite, and those that cannot be fetched: a
        mask of -inf that a softmax has made finite leads nowhere.
        """
        place = {index: i for i, index in enumerate(self._needed)}

        def before(index: int) -> list[int]:
            sources = (port.node for port in self._view.nodes[index].inputs)
            return [i for i in sources if i in place]

        def suspects(index: int) -> list[int]:
            return [i for i in before(index) if not finite.get(i, False)]

        def leads_to_infinity(index: int) -> bool:
            """Return whether it is not finite, or what cannot be fetched before it."""
            unseen = reached([index], lambda i: () if i in finite else before(i))
            return any(not finite.get(i, True) for i in unseen)

        looked_at = (i for i in reached([self._predicate], suspects) if i in finite)
        ends = [
            index
            for index in looked_at
            if not finite[index] and not any(map(leads_to_infinity, suspects(index)))
        ]
        return min(ends, key=place.__getitem__, default=None)


def _source(view: Graph, port: Port) -> Port:
    """Return the port that a value was made at, upstream of what just passes it on."""
    node = view.nodes[port.node]
    while node.op in _PASSING:
        port = node.inputs[0]
        node = view.nodes[port.node]
    return port


def _predicate(view: Graph, watch: Node) -> int:
    """Return the node that decides whether the watch runs.

    Where what it is given comes in without a Switch, it waits for a pivot.
    """
    for index in watch.controls:
        node = view.nodes[index]
        while node.op in _PIVOTS and len(node.sources) == 1:
            node = view.nodes[node.sources[0]]
        if node.op in SWITCH_OPS:
            return node.inputs[1].node
    for index in reached([watch.index], lambda i: view.nodes[i].sources):
        if view.nodes[index].op in SWITCH_OPS:
            return view.nodes[index].inputs[1].node
    raise NotReplayableError(f"nothing decides whether {watch.name} runs")


def _given_name(place: int) -> str:
    return f"tf_amp_given_{place}"


def anchors(view: Graph, node: Node) -> tuple[int, ...]:
    """Return what a constant waits for, which says which loop or branch it is in."""
    if node.inputs:
        return ()
    return tuple(i for i in node.controls if not has_effects(view.nodes[i].op))


def hidden_nodes(view: Graph, needed: Sequence[int]) -> set[int]:
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
