"""Turn the graphs of a stored model to mixed precision, in memory.

Each function is taken by itself and keeps its types where it is called, so whoever
calls it, from this model or another, finds what he knows.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

from grappler_pass import pipeline
from grappler_pass._tensorflow_private import op_def
from grappler_pass.eligibility.exclusions import unmatched
from grappler_pass.functions import conversion
from grappler_pass.functions.conversion import Known, Library
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.op_traits import is_update
from grappler_pass.graph.shapes import (
    Shape,
    Shapes,
    shape_from_proto,
    shapes_from_graph_def,
)
from grappler_pass.graph.type_slots import DTYPE_ENUMS, DTYPE_NAMES, op_def_of
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.draft import PRICED, Settings
from grappler_pass.planning.plan import Plan
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.config.ranges import Ranges
from tf_amp.errors import AlreadyMixedError, AmpError, StageError
from tf_amp.rewriting import graph_settings, stripping
from tf_amp.run import progress
from tf_amp.run.batches import set_batch
from tf_amp.run.graph_copy import HANDLES
from tf_amp.runtime import enabling, scope
from tf_amp.tools import target_device
from tf_amp.tools.convert.job import ConversionOptions, SignatureGain, Storage
from tf_amp.tools.convert.retyping import SHAPES, store_low
from tf_amp.tools.convert.weights import MAIN, VariablesFile
from tf_amp.tracing import grappler_preview

# What tf.data calls the functions it traces.
_DATASET_FUNCTIONS = ("__inference_Dataset_", "__inference_tf_data_")


@dataclasses.dataclass(frozen=True)
class Planner:
    """What graphs are rewritten with.

    The device is the one that they will run on, which bears on plans alone. `batch`
    stands for an unknown first dimension when prices are looked up; None: the pass's
    own guess.
    """

    settings: Settings
    device_type: str = "CPU"
    batch: int | None = None

    @property
    def device_profile(self) -> str:
        """The name of the device's profile."""
        return self.settings.models[self.device_type].profile.name


class LeftAloneError(AmpError):
    """A function keeps every type; the message says why."""


def rewrite(
    graph_def: GraphDef, item: Item, planner: Planner
) -> tuple[GraphDef, dict[str, Plan], dict[str, str]]:
    """Rewrite a graph, on which callers rely as `item` says, and its functions.

    Returns:
      A new graph; plans of the graph (`MAIN`) and of functions by name, where there is
      a product; and functions with a product that keep every type, by name, and why.
    """
    changed = copy.deepcopy(graph_def)
    library = conversion.library_of(graph_def)
    plans: dict[str, Plan] = {}
    left_alone: dict[str, str] = {}
    # Those that hold an op which low precision starts at.
    names = tuple(
        name
        for name, nodes in conversion.nodes_by_function(graph_def).items()
        if any(planner.settings.lists.list_of(node.op) == ALLOW for node in nodes)
    )
    for name in progress.each(names, "planning functions"):
        try:
            outcome = _outcome(name, graph_def, item, library, planner)
        except (LeftAloneError, conversion.FunctionError, StageError) as error:
            left_alone[name] = str(error)
            continue
        if outcome.plan is not None:
            plans[name] = outcome.plan
        if outcome.changed and name == MAIN:
            del changed.node[:]
            changed.node.extend(outcome.graph_def.node)
        elif outcome.changed:
            made = conversion.function_from_graph(outcome.graph_def, library[name])
            (place,) = (f for f in changed.library.function if f.signature.name == name)
            place.CopyFrom(made)
    return changed, plans, left_alone


def _outcome(
    name: str, graph_def: GraphDef, item: Item, library: Library, planner: Planner
) -> Rewrite:
    """Return what the pass makes of one function, or of the graph.

    Raises:
      LeftAloneError, FunctionError, StageError: it stays as it is, and why.
    """
    if name != MAIN:
        function = library[name]
        if name.startswith(_DATASET_FUNCTIONS):
            raise LeftAloneError("it belongs to a tf.data pipeline")
        if planner.settings.low_dtype == "float16":
            called = conversion.reachable_from(function.node_def, library)
            bodies = (function, *(library[each] for each in called))
            ops = {node.op for body in bodies for node in body.node_def}
            # A new value is no update.
            if any(map(is_update, ops - {"AssignVariableOp"})):
                raise LeftAloneError(
                    "it updates variables, and stored gradients are not scaled for "
                    "float16"
                )
        known = known_arguments(function)
        graph_def, item = conversion.graph_from_function(function, library, known)
    shapes = functools.cache(functools.partial(stored_shapes, graph_def, planner.batch))
    outcome = pipeline.optimize(
        grappler_preview.without_devices(graph_def),
        item,
        planner.settings,
        shapes=shapes,
        name=name,
    )
    devices = {node.name: node.device for node in graph_def.node}
    for node in outcome.graph_def.node:
        node.device = devices.get(node.name, "")
    return outcome


def stored_shapes(graph_def: GraphDef, batch: int | None = None) -> Shapes:
    """Return the shapes of every node's outputs, as far as they are known.

    Of a graph as stored, or made of a stored function; `batch` stands for an unknown
    first dimension, None leaves it unknown.
    """
    shapes = {node.name: _written(node) for node in graph_def.node if _has_shapes(node)}
    if batch is None:
        # Of these a price depends on it; a result is an Identity without attributes.
        priced = (n for n in graph_def.node if n.op not in HANDLES and len(n.attr) > 1)
        if any(node.name not in shapes for node in priced):
            shapes = _imported(graph_def) or shapes
        return shapes
    # What follows from a size of the arguments, as the rows of a product of several
    # axes, is inferred.
    sized = copy.deepcopy(graph_def)
    for node in sized.node:
        node.attr.pop(SHAPES, None)
    set_batch(sized, batch)
    inferred = _imported(sized)

    def known(inferred_shape: Shape | None, written: Shape | None) -> Shape | None:
        """Return what was inferred if all of it is known, else what was written."""
        if inferred_shape is not None and None not in inferred_shape:
            return inferred_shape
        is_open = written and written[0] is None
        return (batch, *written[1:]) if written and is_open else written

    return {
        name: tuple(
            itertools.starmap(
                known, itertools.zip_longest(inferred.get(name, ()), outputs)
            )
        )
        for name, outputs in {**inferred, **shapes}.items()
    }


def known_arguments(function: FunctionDef) -> tuple[Known, ...]:
    """Return what the reads of variables in a function show of its handles."""
    known: dict[str, Known] = {}
    for node in function.node_def:
        if node.op == "ReadVariableOp" and _has_shapes(node):
            (shape,) = _written(node) or (None,)
            contents = (int(node.attr["dtype"].type), shape)
            known[node.input[0]] = Known(contents=(contents,))
    arguments = function.signature.input_arg
    return tuple(known.get(str(arg.name), Known()) for arg in arguments)


def _has_shapes(node: NodeDef) -> bool:
    # `in` first: reading a missing key of a protobuf map creates it.
    return SHAPES in node.attr


def _written(node: NodeDef) -> tuple[Shape | None, ...]:
    return tuple(shape_from_proto(s) for s in node.attr[SHAPES].list.shape)


def _imported(graph_def: GraphDef) -> dict[str, tuple[Shape | None, ...]]:
    """Return what TensorFlow infers; nothing where it cannot import the graph."""
    try:
        return dict(shapes_from_graph_def(graph_def))
    except Exception:
        # An unknown op, or a version of one: prices are then guesses.
        return {}


_LOW = frozenset(DTYPE_ENUMS[name] for name in LOW_DTYPES)


@dataclasses.dataclass
class Mixed:
    """What came of a model's graphs so far; names are the report's.

    Of several with the same name, that of the first graph counts.
    """

    low_dtype: str
    device_profile: str
    low_io: tuple[str, ...] = ()
    storage: Storage = dataclasses.field(default_factory=Storage)
    plans: dict[str, Plan] = dataclasses.field(default_factory=dict)
    left_alone: dict[str, str] = dataclasses.field(default_factory=dict)
    signatures: dict[str, SignatureGain] = dataclasses.field(default_factory=dict)
    warnings: dict[str, None] = dataclasses.field(default_factory=dict)


def unmixed() -> contextlib.AbstractContextManager[object]:
    """Return a context in which what is traced or loaded is not rewritten later."""
    return scope.float32_scope() if enabling.is_enabled() else contextlib.nullcontext()


def planner_for(
    options: ConversionOptions, graph_def: GraphDef, seen: Ranges | None
) -> Planner:
    """Return what graphs are rewritten with, given ranges on data if there are any."""
    if (profile := options.settings.get("device_profile")) is not None:
        target = target_device.target_of(profile, options.config.dtype)
        device_type, chosen = target.device_type, target.settings(options.config)
    else:
        device_type = graph_settings.target_device_type(graph_def)
        chosen = graph_settings.settings_from_config(options.config, device_type)
        chosen = graph_settings.with_checks(chosen, options.config, graph_def)
    if seen is not None:
        unsafe = tuple(seen.unsafe(chosen.low_dtype).items())
        chosen = dataclasses.replace(chosen, ranges=(*chosen.ranges, *unsafe))
    # What scales weights keeps them from being stored in 16 bits.
    chosen = dataclasses.replace(chosen, fold_constants=False, fusions=())
    return Planner(chosen, device_type, options.batch)


def mix(
    meta_graph: MetaGraphDef,
    item: Item,
    planner: Planner,
    options: ConversionOptions,
    file: VariablesFile | None,
    mixed: Mixed,
) -> None:
    """Rewrite a graph with its functions, in place, as the options say."""
    graph_def = meta_graph.graph_def
    nodes = [
        n for body in conversion.nodes_by_function(graph_def).values() for n in body
    ]
    _refuse_mixed(nodes)
    mixed.warnings |= {
        f"the exclusion {pattern!r} matches no operation of the model": None
        for pattern in unmatched(options.settings["exclude"], [n.name for n in nodes])
    }
    functions = conversion.library_of(graph_def)
    ops = Counter(str(node.op) for node in nodes if node.op not in functions)
    mixed.warnings |= {
        f"this TensorFlow does not know the op {op} ({count} nodes); they stay "
        "float32": None
        for op, count in sorted(ops.items())
        if op_def_of(op) is None
    }
    if options.weights == "low":
        mixed.storage = store_low(meta_graph, item, planner.settings, file)
    rewritten, plans, left_alone = rewrite(graph_def, item, planner)
    graph_def.CopyFrom(rewritten)
    stripping.strip(graph_def)
    # The ops that were put in, where a model lists what it is made of.
    listed = meta_graph.meta_info_def.stripped_op_list.op
    known = {op.name for op in listed}
    for name in ("Cast", "Identity"):
        if listed and name not in known:
            listed.add().CopyFrom(op_def(name))
    mixed.signatures = _signature_gains(meta_graph, plans) | mixed.signatures
    mixed.plans = plans | mixed.plans
    mixed.left_alone = left_alone | mixed.left_alone


def size_remarks(
    options: ConversionOptions, plans: Mapping[str, Plan]
) -> tuple[str, ...]:
    """Say that unknown sizes are guessed, where that kept everything float32."""
    is_changed = not all(plan.is_empty for plan in plans.values())
    if is_changed or options.batch or options.config.opt_level != PRICED:
        return ()
    shapes = (d.shape for plan in plans.values() for d in plan.decisions)
    if not any(shape and shape[0] is None for shape in shapes):
        return ()
    return ("sizes of batches are open, so costs are guesses; name one by --batch",)


def _signature_gains(
    meta_graph: MetaGraphDef, plans: Mapping[str, Plan]
) -> dict[str, SignatureGain]:
    """Add up what is predicted of the functions that each signature calls."""
    graph_def = meta_graph.graph_def
    library = conversion.library_of(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    signatures, gains = sorted(meta_graph.signature_def.items()), {}
    for name, signature in signatures or [("graph", None)]:
        tensors = signature.outputs.values() if signature else ()
        roots = sorted(tensor.name.partition(":")[0] for tensor in tensors)
        present = [nodes[root] for root in roots if root in nodes]
        functions = conversion.reachable_from(present, library) or (MAIN,)
        if of_signature := [plans[each] for each in functions if each in plans]:
            gains[name] = SignatureGain(
                sum(plan.seconds_before for plan in of_signature),
                sum(plan.seconds_after for plan in of_signature),
            )
    return gains


def _refuse_mixed(nodes: Iterable[NodeDef]) -> None:
    """Refuse products and convolutions in 16 bits, named as "MatMul in bfloat16"."""
    lists = [OpLists.for_dtype(name) for name in LOW_DTYPES]
    counts: Counter[str] = Counter()
    for node in nodes:
        types = (v.type for v in node.attr.values() if v.WhichOneof("value") == "type")
        dtype = next((DTYPE_NAMES[each] for each in types if each in _LOW), "")
        if dtype and any(each.list_of(node.op) == ALLOW for each in lists):
            counts[f"{node.op} in {dtype}"] += 1
    if counts:
        listed = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        raise AlreadyMixedError(
            f"the model is in mixed precision already: {listed}; it was left "
            "unchanged. One that was converted goes back to float32 with --to float32."
        )
