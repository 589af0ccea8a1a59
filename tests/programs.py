"""A TensorFlow program frozen into what the optimizer and a Session need.

A program made in a `tf.Graph`, or traced as a `tf.function`, becomes a GraphDef with
feeds, fetches, initializer and the variables to read afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import tf_optimizer

from grappler_pass.graph.view import Item
from tests.soundness import split_inputs


@dataclasses.dataclass(frozen=True)
class Program:
    """What to run.

    Attributes:
      graph_def: the graph, initializers included.
      feeds: tensor name to value.
      fetches: tensor names whose values are compared.
      targets: names of ops run for their effect.
      init: names of ops run once before.
      state: names of tensors read after the last step.
      steps: how often fetches and targets are run.
      random: whether results depend on random numbers (with fixed seeds).
    """

    graph_def: GraphDef
    feeds: Mapping[str, np.ndarray]
    fetches: tuple[str, ...]
    targets: tuple[str, ...] = ()
    init: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    steps: int = 1
    random: bool = False

    @property
    def item(self) -> Item:
        """Return what the optimizer is told: as in Grappler, fetches are preserved."""
        fetch = _unique(map(_node_of, (*self.fetches, *self.targets)))
        feed = _unique(map(_node_of, self.feeds))
        return Item(fetch=fetch, feed=feed, preserve=_unique((*fetch, *feed)))


@contextlib.contextmanager
def control_flow(*, v2: bool) -> Iterator[None]:
    """Build loops and branches as v1 or v2 ones; inside a function always v2."""
    was_v2 = tf.compat.v1.control_flow_v2_enabled()
    _set_control_flow(v2)
    try:
        yield
    finally:
        _set_control_flow(was_v2)


def _set_control_flow(v2: bool) -> None:
    if v2:
        tf.compat.v1.enable_control_flow_v2()
    else:
        tf.compat.v1.disable_control_flow_v2()


def program_from_graph(
    graph: tf.Graph,
    feeds: Mapping[tf.Tensor, np.ndarray],
    fetches: Iterable[tf.Tensor],
    *,
    targets: Iterable[tf.Operation] = (),
    steps: int = 1,
    random: bool = False,
) -> Program:
    """Freeze a v1 graph; its global variables are initialized and read afterwards."""
    with graph.as_default():
        variables = tf.compat.v1.global_variables()
        init = tf.compat.v1.variables_initializer(variables).name
        state = [_readable(v) for v in variables]
    return Program(
        graph_def=graph.as_graph_def(),
        feeds={tensor.name: value for tensor, value in feeds.items()},
        fetches=_unique(tensor.name for tensor in fetches),
        targets=_unique(op.name for op in targets),
        init=(init,),
        state=_unique(tensor.name for tensor in state),
        steps=steps,
        random=random,
    )


def program_from_function(
    function: tf.types.experimental.PolymorphicFunction,
    *args: np.ndarray,
    steps: int = 1,
    random: bool = False,
    order: Sequence[tf.Variable] = (),
) -> Program:
    """Freeze a `tf.function` of tensors, traced for `args`.

    Captured variables become variables of the graph, other captures constants. They are
    read afterwards as they were captured, or in a given order.
    """
    specs = [tf.TensorSpec(a.shape, a.dtype) for a in args]
    concrete = function.get_concrete_function(*specs)
    graph_def = concrete.graph.as_graph_def()
    inputs = concrete.inputs[: len(args)]
    # A kernel that updates a variable takes its handle alone.
    known = {id(v.handle): v for v in (*concrete.graph.variables, *order)}
    values = _captured_values(concrete, known)
    with tf.Graph().as_default() as state_graph:
        init, reads, replaced = _variables_of(concrete, values, known)
    ordered = [id(variable.handle) for variable in order]
    state = [reads[handle] for handle in ordered if handle in reads] or reads.values()
    nodes = {node.name: node for node in graph_def.node}
    for name, node in replaced.items():
        nodes[name].CopyFrom(node)
    present = set(nodes)
    graph_def.node.extend(
        node for node in state_graph.as_graph_def().node if node.name not in present
    )
    return Program(
        graph_def=graph_def,
        feeds={t.name: a for t, a in zip(inputs, args, strict=True)},
        fetches=_unique(t.name for t in concrete.outputs),
        targets=_unique(op.name for op in concrete.graph.control_outputs),
        init=init,
        state=tuple(state),
        steps=steps,
        random=random,
    )


def _captured_values(
    concrete: tf.types.experimental.ConcreteFunction, known: Mapping[int, tf.Variable]
) -> list[np.ndarray]:
    return [
        (known[id(outer)] if outer.dtype == tf.resource else outer).numpy()
        for outer, _ in concrete.graph.captures
    ]


def _variables_of(
    concrete: tf.types.experimental.ConcreteFunction,
    values: list[np.ndarray],
    known: Mapping[int, tf.Variable],
) -> tuple[tuple[str, ...], dict[int, str], dict[str, tf.compat.v1.NodeDef]]:
    """Make a VarHandleOp with initializer, or a Const, for every capture.

    Returns:
      What initializes variables, what reads each by its handle's id, what was made.
    """
    init: list[str] = []
    reads: dict[int, str] = {}
    replaced: dict[str, tf.compat.v1.NodeDef] = {}
    for (outer, inner), initial in zip(concrete.graph.captures, values, strict=True):
        name = inner.op.name
        if outer.dtype != tf.resource:
            made = tf.constant(initial, name=name).op
        else:
            variable = known[id(outer)]
            handle = tf.raw_ops.VarHandleOp(
                dtype=variable.dtype, shape=variable.shape, shared_name=name, name=name
            )
            value = tf.constant(initial, name=f"{name}_initial")
            assign = tf.raw_ops.AssignVariableOp(
                resource=handle, value=value, name=f"{name}_assign"
            )
            read = tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=variable.dtype, name=f"{name}_read"
            )
            init.append(assign.name)
            reads[id(outer)] = read.name
            made = handle.op
        assert made.name == name, f"{name} became {made.name}"
        replaced[name] = made.node_def
    return tuple(init), reads, replaced


def captured_as_by_grappler(
    program: Program,
    *,
    fused: bool = True,
    cluster: grappler_cluster.Cluster | None = None,
) -> Program:
    """Return the program as the optimizer meets it: inlined, lowered, fused, pruned.

    TensorFlow's own Grappler passes run, then what initializes and reads the state,
    which they prune, is put back by `with_state`.

    Args:
      program: as built.
      fused: whether products take their bias and activation in, as Grappler has it.
      cluster: the devices to optimize for; those of this machine by default.
    """
    metagraph = meta_graph_pb2.MetaGraphDef(graph_def=program.graph_def)
    metagraph.collection_def["train_op"].node_list.value.extend(
        (*program.fetches, *program.targets)
    )
    optimized = tf_optimizer.OptimizeGraph(
        _rewriter_config(fused), metagraph, verbose=False, cluster=cluster or _cluster()
    )
    return dataclasses.replace(program, graph_def=optimized)


def pruned(program: Program) -> Program:
    """Return the program without what its fetches do not need, names as they were."""
    kept = tf.compat.v1.graph_util.extract_sub_graph(
        program.graph_def, [*program.item.fetch, *program.item.feed]
    )
    kept.library.CopyFrom(program.graph_def.library)
    return dataclasses.replace(program, graph_def=kept)


@functools.cache
def _cluster() -> grappler_cluster.Cluster:
    return grappler_cluster.Cluster(disable_detailed_stats=True)


def _rewriter_config(fused: bool = True) -> config_pb2.ConfigProto:
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.fail_on_optimizer_errors = True
    if not fused:
        options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    return config


def with_state(graph_def: GraphDef, program: Program, original: GraphDef) -> GraphDef:
    """Return `graph_def` with the nodes of `original` that init and state need."""
    nodes = {node.name: node for node in original.node}
    merged = GraphDef()
    merged.CopyFrom(graph_def)
    present = {node.name for node in merged.node}
    waiting = [_node_of(t) for t in (*program.init, *program.state)]
    while waiting:
        name = waiting.pop()
        if name in present:
            continue
        present.add(name)
        merged.node.append(nodes[name])
        data, controls = split_inputs(nodes[name])
        waiting.extend(source for source, _ in data)
        waiting.extend(controls)
    functions = {f.signature.name for f in merged.library.function}
    merged.library.function.extend(
        f for f in original.library.function if f.signature.name not in functions
    )
    return merged


def run(graph_def: GraphDef, program: Program) -> list[np.ndarray]:
    """Run the program with `graph_def` in a Session that optimizes nothing.

    Returns:
      The fetches of every step, then the state.
    """
    return _run(graph_def, program, plain_session_config())


def run_with_grappler(program: Program) -> list[np.ndarray]:
    """Run the program as a user's Session would: Grappler and its plugins on."""
    config = _rewriter_config()
    config.graph_options.rewrite_options.fail_on_optimizer_errors = False
    return _run(program.graph_def, program, config)


def _run(
    graph_def: GraphDef, program: Program, config: config_pb2.ConfigProto
) -> list[np.ndarray]:
    config.intra_op_parallelism_threads = 1
    config.inter_op_parallelism_threads = 1
    results: list[np.ndarray] = []
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            session.run(list(program.init))
            wanted = [list(program.fetches), list(program.targets)]
            for _ in range(program.steps):
                values, _ = session.run(wanted, dict(program.feeds))
                results.extend(values)
            results.extend(session.run(list(program.state)))
    return results


def plain_session_config() -> config_pb2.ConfigProto:
    """Return the settings of a Session that runs a graph as it is."""
    config = config_pb2.ConfigProto()
    options = config.graph_options
    options.rewrite_options.disable_meta_optimizer = True
    options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    options.rewrite_options.constant_folding = rewriter_config_pb2.RewriterConfig.OFF
    return config


def is_floating(value: np.ndarray) -> bool:
    """Return whether an array, bfloat16 included, holds floating numbers."""
    return tf.as_dtype(value.dtype).is_floating


def _readable(variable: tf.Variable) -> tf.Tensor:
    if hasattr(variable, "handle"):
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return tf.identity(variable.read_value())


def _node_of(tensor_name: str) -> str:
    return tensor_name.lstrip("^").partition(":")[0]


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def public_functions(module: types.ModuleType) -> list[Callable[..., Any]]:
    """Return the public functions that a module defines, in their order."""
    return [
        made
        for name, made in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(made)
        and made.__module__ == module.__name__
    ]
