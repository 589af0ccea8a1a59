"""Turn the graphs of a stored model to mixed precision, in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.framework import op_def_registry

from grappler_pass.eligibility.exclusions import unmatched
from grappler_pass.functions import conversion
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.type_slots import DTYPE_ENUMS, DTYPE_NAMES, op_def_of
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import PRICED
from grappler_pass.planning.plan import Plan
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.config.ranges import Ranges
from tf_amp.errors import AlreadyMixedError
from tf_amp.rewriting import graph_settings, stripping
from tf_amp.runtime import scope, switch
from tf_amp.tools import target_device
from tf_amp.tools.convert.files.variables_file import VariablesFile
from tf_amp.tools.convert.options import Options
from tf_amp.tools.convert.planner import MAIN, Planner, rewrite
from tf_amp.tools.convert.report import SignatureGain, Storage
from tf_amp.tools.convert.weights.retyping import store_low

_LOW = frozenset(DTYPE_ENUMS[name] for name in LOW_DTYPES)


class Mixed(NamedTuple):
    """What came of a graph, which was changed in place; names are the report's."""

    low_dtype: str
    device_profile: str
    plans: Mapping[str, Plan]
    left_alone: Mapping[str, str]
    storage: Storage
    signatures: Mapping[str, SignatureGain]
    warnings: tuple[str, ...]


def unmixed() -> contextlib.AbstractContextManager[object]:
    """Return a context in which what is traced or loaded is not rewritten later."""
    return scope.float32_scope() if switch.is_enabled() else contextlib.nullcontext()


def planner_for(options: Options, graph_def: GraphDef, seen: Ranges | None) -> Planner:
    """Return what graphs are rewritten with, given ranges on data if there are any."""
    if options.choice.device_profile is not None:
        target = target_device.target_of(
            options.choice.device_profile, options.config.dtype
        )
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
    options: Options,
    file: VariablesFile | None,
) -> Mixed:
    """Rewrite a graph with its functions, in place, as the options say."""
    _refuse_mixed(meta_graph.graph_def)
    warnings = (
        *_unmatched(options.choice.exclude, meta_graph.graph_def),
        *_unknown(meta_graph.graph_def),
    )
    storage = Storage()
    if options.weights == "low":
        storage = store_low(meta_graph, item, planner, file)
    rewritten, plans, left_alone = rewrite(meta_graph.graph_def, item, planner)
    meta_graph.graph_def.CopyFrom(rewritten)
    stripping.strip(meta_graph.graph_def)
    _list_new_ops(meta_graph)
    return Mixed(
        planner.settings.low_dtype,
        planner.device_profile,
        plans,
        left_alone,
        storage,
        _signature_gains(meta_graph, plans),
        warnings,
    )


def merged(found: Sequence[Mixed]) -> Mixed:
    """Return one outcome for all graphs of a model; the first one's comes first."""
    plans: dict[str, Plan] = {}
    left_alone: dict[str, str] = {}
    gains: dict[str, SignatureGain] = {}
    for each in reversed(found):
        plans |= each.plans
        left_alone |= each.left_alone
        gains |= each.signatures
    warnings = tuple(dict.fromkeys(w for each in found for w in each.warnings))
    return found[0]._replace(
        plans=plans, left_alone=left_alone, signatures=gains, warnings=warnings
    )


def size_remarks(options: Options, plans: Mapping[str, Plan]) -> tuple[str, ...]:
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
    called: dict[str, tuple[str, ...]] = {}
    for name, signature in sorted(meta_graph.signature_def.items()):
        roots = sorted(t.name.partition(":")[0] for t in signature.outputs.values())
        present = [nodes[root] for root in roots if root in nodes]
        called[name] = conversion.reachable_from(present, library) or (MAIN,)
    if not meta_graph.signature_def:
        called["graph"] = (MAIN,)
    gains = {}
    for name, functions in called.items():
        if found := [plans[each] for each in functions if each in plans]:
            gains[name] = SignatureGain(
                sum(plan.seconds_before for plan in found),
                sum(plan.seconds_after for plan in found),
            )
    return gains


def _all_nodes(graph_def: GraphDef) -> Iterator[NodeDef]:
    return itertools.chain.from_iterable(conversion.bodies_of(graph_def).values())


def _refuse_mixed(graph_def: GraphDef) -> None:
    """Refuse products and convolutions in 16 bits, named as "MatMul in bfloat16"."""
    lists = [OpLists.for_dtype(name) for name in LOW_DTYPES]
    found: Counter[str] = Counter()
    for node in _all_nodes(graph_def):
        types = (v.type for v in node.attr.values() if v.WhichOneof("value") == "type")
        dtype = next((DTYPE_NAMES[each] for each in types if each in _LOW), "")
        if dtype and any(each.list_of(node.op) == ALLOW for each in lists):
            found[f"{node.op} in {dtype}"] += 1
    if found:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        raise AlreadyMixedError(
            f"the model is in mixed precision already: {counts}; it was left as it is. "
            "One that was converted goes back to float32 with --to float32."
        )


def _unmatched(patterns: Sequence[str], graph_def: GraphDef) -> Iterator[str]:
    """Say which exclusions find no operation."""
    names = [node.name for node in _all_nodes(graph_def)] if patterns else []
    for pattern in unmatched(patterns, names):
        yield f"the exclusion {pattern!r} matches no operation of the model"


def _unknown(graph_def: GraphDef) -> Iterator[str]:
    """Say which ops this TensorFlow does not know."""
    functions = conversion.library_of(graph_def)
    ops = (str(node.op) for node in _all_nodes(graph_def) if node.op not in functions)
    for op, count in sorted(Counter(ops).items()):
        if op_def_of(op) is None:
            yield (
                f"this TensorFlow does not know the op {op} ({count} nodes); they stay "
                "float32"
            )


def _list_new_ops(meta_graph: MetaGraphDef) -> None:
    """Name the ops that were put in, where a model lists what it is made of."""
    listed = meta_graph.meta_info_def.stripped_op_list.op
    if not listed:
        return
    known = {op.name for op in listed}
    for name in ("Cast", "Identity"):
        if name not in known:
            listed.add().CopyFrom(op_def_registry.get(name))
