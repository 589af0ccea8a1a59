"""Run a graph once, in a sandbox, on given values, and fetch tensors.

Each run has a Session of its own and begins with the same values and the same seeds, so
that two runs of one graph differ by nothing but the order of sums. What cannot be run
so raises NotMeasurableError, which says why.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.annotations import REWRITTEN
from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.functions.conversion import nodes_by_function
from grappler_pass.graph.editing import split_input
from grappler_pass.graph.op_traits import input_behind, is_random, passes_on
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.type_slots import DTYPE_ENUMS
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Settings
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.errors import NotMeasurableError
from tf_amp.run.graph_copy import (
    SOURCE,
    STEP,
    VARIABLES,
    Array,
    NotRunnableError,
    Sandbox,
    Values,
    sandbox_from_graph,
    synthetic,
)
from tf_amp.run.graph_run import GraphRun
from tf_amp.tracing.stamp_reader import with_traced_shapes

_SEED = 20
_SEEDS = {"seed", "seed2"}
_PREFIX = "tf_amp_case"
# What TensorFlow begins a message with that says where in the graph it was.
_FAILED = "Graph execution error:"


@dataclasses.dataclass(frozen=True)
class Watched:
    """A tensor that is compared.

    It is named by who reads it where that can be done: the reader keeps its name and
    its type in a rewritten graph, where the tensor itself may be in 16 bits.

    Attributes:
      name: human-readable.
      kind: "output" or "gradient".
      node: name of the reader, or of the node that makes it.
      input: of the reader; None: `node` makes it.
      output: of the node that makes it.
    """

    name: str
    kind: str
    node: str
    input: int | None = None
    output: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class GraphCase:
    """A graph as Grappler passes it, to be run outside of its program.

    Attributes:
      graph_def: never written.
      item: what it is run for.
      shapes: static shapes by node name.
      settings: the pass's, for its rewrite.
      values: what is known of the data that comes in, by the names that a sandbox gives
        its contents: a variable's is that of its handle, a tensor's `node:output`.
      watched: the tensors to compare.
      name: of the graph, human-readable.
      variables: human-readable names of variables, by name of their handle.
      run_shapes: static shapes for the values given, where `shapes` leaves some open.
    """

    graph_def: GraphDef
    item: Item
    shapes: Shapes
    settings: Settings
    values: Values
    watched: tuple[Watched, ...] = ()
    name: str = ""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run_shapes: Shapes | None = None

    @property
    def known_shapes(self) -> Shapes:
        """The shapes that a run has, as far as they are known."""
        return self.shapes if self.run_shapes is None else self.run_shapes


def run(case: GraphCase, graph_def: GraphDef, values: Values) -> dict[str, Array]:
    """Run a graph, a case's or made of it, and return the tensors watched, by name."""
    sandbox = sandbox_of(case, graph_def, values)
    wanted = tensors_in(sandbox, graph_def, case.watched)
    if case.settings.fuses:
        # XLA compiles all that it knows, but for random ops: those would draw other
        # numbers in every run, whatever their seeds.
        compiled = copy.deepcopy(sandbox.graph_def)
        for node in compiled.node:
            if not is_random(node.op):
                node.attr["_XlaCompile"].b = True
        sandbox = dataclasses.replace(sandbox, graph_def=compiled)
    return execute(sandbox, values, wanted)


def tensors_in(
    sandbox: Sandbox, graph_def: GraphDef, watched: Iterable[Watched]
) -> dict[str, tuple[str, int]]:
    """Return where the sandbox of a graph has the tensors that are watched, by name."""
    given = {node.name: node for node in graph_def.node}
    made = {node.name: node for node in sandbox.graph_def.node}
    ports: dict[str, tuple[str, int]] = {}
    for each in watched:
        name, output = each.node, each.output
        if name not in given:
            continue
        if each.input is not None:
            name, output = split_input(given[name].input[each.input])
        while name in given and (
            passes_on(given[name].op)
            or (given[name].op == "Cast" and REWRITTEN in given[name].attr)
        ):
            passed = input_behind(given[name].op, output)
            name, output = split_input(given[name].input[passed])
        source = f"{name}{SOURCE}{output}"
        # What is left out has a synthetic tensor in its place, or nothing.
        if name in made and made[name].op != "NoOp":
            ports[each.name] = name, output
        elif name in made and source in made:
            ports[each.name] = source, 0
    return ports


def with_run_shapes(case: GraphCase) -> GraphCase:
    """Return a case that knows which shapes its values lead to."""
    fed = copy.deepcopy(case.graph_def)
    is_open = False
    for node in fed.node:
        value = case.values.get(f"{node.name}:0")
        if node.op == "Placeholder" and value is not None:
            is_open |= None in (case.shapes.get(node.name, ((None,),))[0] or (None,))
            shape = tf.TensorShape(value.shape).as_proto()
            node.attr["shape"].shape.CopyFrom(shape)
    if not is_open:
        return case
    shapes = with_traced_shapes(fed, shapes_from_graph_def(fed))
    return dataclasses.replace(case, run_shapes=shapes)


def completed(case: GraphCase, graph_defs: Iterable[GraphDef]) -> dict[str, Array]:
    """Return values for all that some graphs need: those known, else synthetic ones."""
    found = dict(case.values)
    for graph_def in graph_defs:
        sandbox = sandbox_of(case, graph_def, found)
        missing = (each for each in sandbox.contents if each.name not in found)
        found |= {content.name: synthetic(content) for content in missing}
    return found


def sandbox_of(case: GraphCase, graph_def: GraphDef, values: Values) -> Sandbox:
    """Return a graph, a case's or made of it, that runs by itself on such values."""
    known = dict(case.known_shapes)
    for name, value in values.items():
        node, _, output = name.rpartition(":")
        if node:
            found = list(known.get(node, ()))
            found += [None] * (int(output) + 1 - len(found))
            found[int(output)] = tuple(map(int, value.shape))
            known[node] = tuple(found)
    try:
        return sandbox_from_graph(graph_def, case.item, known)
    except NotRunnableError as error:
        raise NotMeasurableError(
            f"The graph cannot be run by itself: {error}."
        ) from error


def execute(
    sandbox: Sandbox, values: Values, wanted: Mapping[str, tuple[str, int]]
) -> dict[str, Array]:
    """Run a sandbox's graph once on values of its contents, by name.

    Wanted are tensors by name, each as a node and the number of its output.
    """
    seeded = copy.deepcopy(sandbox.graph_def)
    for node in itertools.chain.from_iterable(nodes_by_function(seeded).values()):
        # Else an op would draw other numbers in every Session.
        takes_seeds = is_random(node.op) and _SEEDS <= set(node.attr)
        if takes_seeds and not any(node.attr[name].i for name in _SEEDS):
            node.attr["seed"].i = _SEED
            node.attr["seed2"].i = zlib.crc32(node.name.encode()) & 0x7FFFFFFF
        name = node.attr["shared_name"].s.decode() if node.op in VARIABLES else ""
        if name in values:
            shape = tf.TensorShape(values[name].shape).as_proto()
            node.attr["shape"].shape.CopyFrom(shape)
    try:
        with GraphRun({_PREFIX: seeded}, sandbox.contents, values) as run:
            tensors = {
                name: run.tensor(f"{_PREFIX}/{node}", output)
                for name, (node, output) in wanted.items()
            }
            step = run.operation(f"{_PREFIX}/{STEP}")
            fetched, _ = run.fetch((tensors, step))
    except (tf.errors.OpError, ValueError) as error:
        message = str(error).removeprefix(_FAILED).lstrip().partition("\n")[0]
        raise NotMeasurableError(
            f"The graph does not run by itself: {message}"
        ) from error
    found_values = {name: np.asarray(value) for name, value in fetched.items()}
    return {
        name: value.astype(np.float32) if value.dtype.name in LOW_DTYPES else value
        for name, value in found_values.items()
    }


def rounded(value: Array, low_dtype: str) -> Array:
    """Return float32 values as a 16-bit type holds them; others unchanged.

    What does not fit into the type stays unchanged, so that nothing becomes infinite.
    """
    if value.dtype != np.float32:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        low = value.astype(NUMPY_DTYPES[DTYPE_ENUMS[low_dtype]])
        low = low.astype(np.float32)
    fits: Array = np.where(np.isfinite(low), low, value)
    return fits
