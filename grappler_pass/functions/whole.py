"""Functions that XLA compiles as a whole: what it cannot take, and copies of them.

A copy is another function, which is compiled at its first call. Its name says what it
computes, so that it is the same in each process, and XLA finds it among what it keeps.

    step -> f -> g      tf_amp_5b1c -> tf_amp_5b1c_1 -> tf_amp_5b1c_2

A function that XLA cannot take, since it reads a dataset say, may do little but call
one that XLA takes. Then it is copied unchanged, but for the call.

    step(data, v)    f(next(data), v)    f'(next(data), v)

Left alone is what would do something else than before: draw other random numbers, or
compute where an error is raised. So is what would be compiled at each call: XLA needs
the sizes of all tensors, and a size that depends on a value is another one each time.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass._tensorflow_private import registered_kernels
from grappler_pass.functions.bodies import bounds
from grappler_pass.functions.conversion import graph_from_function, rename_functions
from grappler_pass.graph.op_table import COUNTING_OPS, PLAIN_CALL_OPS, WHILE_OPS
from grappler_pass.graph.op_traits import is_random
from grappler_pass.graph.type_slots import op_def_of
from grappler_pass.graph.view import Graph
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting import clusters

_COMPILED = "_XlaMustCompile"
_XLA_DEVICES = {"CPU": "XLA_CPU_JIT", "GPU": "XLA_GPU_JIT"}
# Integers that are data, and no sizes.
_DATA = frozenset("ids indices labels segment_ids targets".split())
# They say sizes that are known while XLA compiles; what they are made from is not.
_SHAPES = frozenset("Rank Shape ShapeN Size".split())
_SHAPE_OF_ARGUMENT = "_output_shapes"
_DIGEST_BYTES = 12


def pruned(function: FunctionDef) -> FunctionDef:
    """Return a function of the nodes that its results and effects need."""
    nodes = {node.name: node for node in function.node_def}
    ends = (_source(text) for text in function.ret.values())
    starts = [*ends, *function.control_ret.values()]

    def needed(name: str) -> Iterator[str]:
        return (s for s in map(_source, nodes[name].input) if s in nodes)

    kept = {*reached([name for name in starts if name in nodes], needed)}
    changed = FunctionDef()
    changed.CopyFrom(function)
    changed.ClearField("node_def")
    changed.node_def.extend(n for n in function.node_def if n.name in kept)
    return changed


def obstacle_in(functions: Sequence[FunctionDef], device_type: str) -> str:
    """Return why XLA does not compile a function; "" where it may.

    Args:
      functions: it and those that it calls, without what they do not need.
      device_type: of the device that it runs on.
    """
    for number, arg in enumerate(functions[0].signature.input_arg):
        if (
            arg.type != types_pb2.DT_RESOURCE
            and fixed_shape(functions[0], number) is None
        ):
            return f"the shape of its argument {arg.name} varies"
    names = {function.signature.name for function in functions}
    for function in functions:
        known = _known_nodes(function)
        for node in function.node_def:
            why = _obstacle(node, known, device_type)
            if not why and node.op not in names and not _is_taken(node.op, device_type):
                why = "is not known to XLA"
            if why:
                return f"{node.name} ({node.op}) {why}"
    devices = {node.device for f in functions for node in f.node_def if node.device}
    return "several devices compute it" if len(devices) > 1 else ""


def compiled_copies(
    functions: Sequence[FunctionDef], failures: int = 0
) -> list[FunctionDef]:
    """Return copies of a function, which XLA compiles, and of those that it calls.

    `failures`: how many copies have failed. XLA tries none of the same name again.
    """
    given = [function.signature.name for function in functions]
    numbered = _renamed(functions, {name: str(i) for i, name in enumerate(given)})
    digest = hashlib.blake2b(b"failed" * failures, digest_size=_DIGEST_BYTES)
    for function in numbered:
        digest.update(function.SerializeToString(deterministic=True))
    name = f"tf_amp_{digest.hexdigest()}"
    names = {str(i): f"{name}_{i}" if i else name for i in range(len(given))}
    copies = _renamed(numbered, names)
    copies[0].attr[_COMPILED].b = True
    return copies


class CompiledCall(NamedTuple):
    """A function that calls what XLA compiles, and a function of that call alone.

        step(data, v)    f'(next(data), v)      alone(x, v)    f'(x, v)

    XLA finds what it has compiled by the name and the attributes of a call, which are
    those of both. So one call of the second compiles for the first.
    """

    caller: FunctionDef
    alone: FunctionDef


def only_call(functions: Sequence[FunctionDef]) -> NodeDef | None:
    """Return the one call of a function that does less itself than what it calls.

    `functions`: it and those that it calls.
    """
    caller, *others = functions
    sizes = {f.signature.name: len(f.node_def) for f in others}
    calls = [node for node in caller.node_def if node.op in PLAIN_CALL_OPS]
    names = [node.attr["f"].func.name for node in calls]
    is_most = len(names) == 1 and sizes[names[0]] > len(caller.node_def)
    return calls[0] if is_most else None


def obstacle_of_zeros(functions: Sequence[FunctionDef]) -> str:
    """Return why a function is not called with zeros: it might never end."""
    library = {function.signature.name: function for function in functions}
    for function in functions:
        view = Graph(*graph_from_function(function, library))
        for node in view.nodes:
            if node.op in WHILE_OPS and not [*bounds(view, node, library)]:
                return f"{node.name} ({node.op}) may go on as long as its values say"
    return ""


def argument_sources(call: NodeDef) -> list[str]:
    """Return the nodes, or arguments, that the arguments of a call come from."""
    return [_source(text) for text in call.input if text[0] != "^"]


def calling_compiled(
    caller: FunctionDef, call: NodeDef, copy: FunctionDef
) -> CompiledCall:
    """Return a copy of a function, one call of which is that of a compiled copy."""
    compiled, name = NodeDef(), copy.signature.name
    compiled.CopyFrom(call)
    rename_functions(compiled, {call.attr["f"].func.name: name})
    compiled.attr[_COMPILED].b = True
    changed, alone = FunctionDef(), FunctionDef()
    changed.CopyFrom(caller)
    changed.signature.name = f"{caller.signature.name}__{name}"
    for node in changed.node_def:
        if node.name == call.name:
            node.CopyFrom(compiled)
    alone.signature.CopyFrom(copy.signature)
    alone.signature.name = f"{changed.signature.name}_alone"
    alone.signature.control_output[:] = [call.name]
    alone.control_ret[call.name] = call.name
    compiled.input[:] = [arg.name for arg in copy.signature.input_arg]
    alone.node_def.append(compiled)
    for number, arg in enumerate(copy.signature.output_arg):
        alone.ret[arg.name] = f"{call.name}:output:{number}"
    return CompiledCall(changed, alone)


def _renamed(
    functions: Iterable[FunctionDef], names: dict[str, str]
) -> list[FunctionDef]:
    renamed = []
    for function in functions:
        copied = FunctionDef()
        copied.CopyFrom(function)
        copied.signature.name = names[function.signature.name]
        for node in copied.node_def:
            rename_functions(node, names)
        renamed.append(copied)
    return renamed


def fixed_shape(function: FunctionDef, number: int) -> tf.TensorShape | None:
    """Return the shape that an argument has at each call; None where that varies."""
    known = function.arg_attr[number].attr if number in function.arg_attr else {}
    shapes = known[_SHAPE_OF_ARGUMENT].list.shape if _SHAPE_OF_ARGUMENT in known else ()
    fixed = (tf.TensorShape(shape) for shape in shapes)
    return next((shape for shape in fixed if shape.is_fully_defined()), None)


def _obstacle(node: NodeDef, known: Collection[str], device_type: str) -> str:
    if is_random(node.op) or clusters.draws(node):
        return "draws random numbers"
    if node.name in known:
        return ""
    # Kernels on GPUs do not check indices either.
    is_on_cpu = device_type == "CPU"
    if clusters.checks(node) or (is_on_cpu and clusters.misses_errors(node, known)):
        return "may raise an error, which XLA leaves out"
    sizes = (_source(node.input[number]) for number in _sizing_inputs(node))
    if not all(name in known for name in sizes):
        return "has a size that depends on a value"
    return ""


@functools.cache
def _is_taken(op: str, device_type: str) -> bool:
    """Return whether XLA can compile an op for a type of device."""
    name = _XLA_DEVICES.get(device_type)
    return any(kernel.device_type == name for kernel in registered_kernels(op))


def _known_nodes(function: FunctionDef) -> frozenset[str]:
    """Return the nodes whose values are known while XLA compiles a function."""
    nodes = {node.name: node for node in function.node_def}
    readers: dict[str, list[str]] = defaultdict(list)
    for node in function.node_def:
        if node.op not in _SHAPES:
            for text in node.input:
                if text[0] != "^":
                    readers[_source(text)].append(node.name)
    arguments = (name for name in tuple(readers) if name not in nodes)
    starts = [reader for name in arguments for reader in readers[name]]
    unknown = {*reached(starts, lambda name: readers.get(name, ()))}
    return frozenset(nodes.keys() - unknown)


def _sizing_inputs(node: NodeDef) -> Iterator[int]:
    """Yield the numbers of a node's inputs that say sizes, axes and the like."""
    op_def = op_def_of(node.op)
    number = 0
    for arg in () if op_def is None else op_def.input_arg:
        count = node.attr[arg.number_attr].i if arg.number_attr else 1
        if arg.type_list_attr:
            count = len(node.attr[arg.type_list_attr].list.type)
        elif _says_sizes(node.op, arg.name):
            yield from range(number, number + count)
        number += count


@functools.cache
def _says_sizes(op: str, name: str) -> bool:
    """Return whether an argument of an op can be nothing but integers, and no data."""
    op_def = op_def_of(op)
    assert op_def is not None, f"{op} has no arguments"
    if op in COUNTING_OPS:
        return True
    arg = next(each for each in op_def.input_arg if each.name == name)
    types = [arg.type] if arg.type else []
    for attr in op_def.attr:
        if attr.name == arg.type_attr:
            types = [*attr.allowed_values.list.type]
    is_whole = bool(types) and all(tf.as_dtype(each).is_integer for each in types)
    return is_whole and name not in _DATA


def _source(text: str) -> str:
    """Return the node, or the argument, that an input comes from."""
    return text.removeprefix("^").partition(":")[0]
