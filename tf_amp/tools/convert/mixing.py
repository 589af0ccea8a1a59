"""Turn the graphs of a stored model to mixed precision, in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from grappler_pass.eligibility.exclusions import finder
from grappler_pass.functions import conversion
from tf_amp.errors import AlreadyMixedError
from tf_amp.rewriting import graph_settings, stripping
from tf_amp.tools import target_device
from tf_amp.tools.convert.already_mixed import products_in_16_bits, unknown_ops
from tf_amp.tools.convert.options import Options
from tf_amp.tools.convert.planner import MAIN, Planner, Rewritten, names_in, rewrite
from tf_amp.tools.convert.report import SignatureGain, Storage
from tf_amp.tools.convert.weights.storing import store_low

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    from grappler_pass.graph.view import Item
    from grappler_pass.planning.plan import Plan
    from tf_amp.config.ranges import Ranges
    from tf_amp.tools.convert.files.variables_file import VariablesFile


@dataclasses.dataclass(frozen=True)
class Mixed:
    """What came of one graph, which was changed in place."""

    low_dtype: str
    outcome: Rewritten
    storage: Storage
    signatures: Mapping[str, SignatureGain]
    warnings: tuple[str, ...]


def planner_for(
    options: Options, graph_def: GraphDef, seen: Ranges | None
) -> tuple[Planner, str]:
    """Return what graphs are rewritten with, and the name of the device's profile.

    Args:
      options: of the conversion.
      graph_def: of the model.
      seen: ranges on calibration data, if there is any.

    Raises:
      ConfigError: there is no such profile; the message names those there are.
    """
    if options.device_profile is not None:
        target = target_device.target_of(options.device_profile, options.config.dtype)
        device_type, chosen = target.device_type, target.settings(options.config)
    else:
        device_type = graph_settings.target_device_type(graph_def)
        chosen = graph_settings.settings_from_config(options.config, device_type)
    if seen is not None:
        unsafe = tuple(seen.unsafe(chosen.low_dtype).items())
        chosen = dataclasses.replace(chosen, ranges=(*chosen.ranges, *unsafe))
    # What scales weights keeps them from being stored in 16 bits.
    chosen = dataclasses.replace(chosen, fold_constants=False, fusions=())
    config = options.config if options.device_profile is None else None
    planner = Planner(chosen, device_type, options.batch, config)
    return planner, chosen.models[device_type].profile.name


def mix(
    meta_graph: MetaGraphDef,
    item: Item,
    planner: Planner,
    options: Options,
    file: VariablesFile | None,
) -> Mixed:
    """Rewrite a graph with its functions, in place, as the options say.

    Args:
      meta_graph: a SavedModel's, or one around a bare graph.
      item: what callers rely on in it.
      planner: what to do it with.
      options: whether weights are stored in 16 bits.
      file: of the variables; None where there are none.

    Raises:
      AlreadyMixedError: it computes in 16 bits already.
    """
    _refuse_mixed(meta_graph.graph_def)
    warnings = [*_unmatched(options.new_patterns, meta_graph.graph_def)]
    warnings += _unknown(meta_graph.graph_def)
    storage = Storage()
    if options.weights == "low":
        storage = store_low(meta_graph, item, planner, file)
    outcome = rewrite(meta_graph.graph_def, item, planner)
    meta_graph.graph_def.CopyFrom(outcome.graph_def)
    stripping.strip(meta_graph.graph_def)
    _list_new_ops(meta_graph)
    gains = signature_gains(meta_graph, outcome.plans)
    low_dtype = planner.settings.low_dtype
    return Mixed(low_dtype, outcome, storage, gains, tuple(warnings))


def merged(found: Sequence[Mixed]) -> Mixed:
    """Return one outcome for all graphs of a model; the first one's comes first."""
    first = found[0]
    if len(found) == 1:
        return first
    plans: dict[str, Plan] = {}
    left_alone: dict[str, str] = {}
    gains: dict[str, SignatureGain] = {}
    for each in reversed(found):
        plans |= each.outcome.plans
        left_alone |= each.outcome.left_alone
        gains |= each.signatures
    outcome = dataclasses.replace(first.outcome, plans=plans, left_alone=left_alone)
    warnings = tuple(dict.fromkeys(w for each in found for w in each.warnings))
    return dataclasses.replace(
        first, outcome=outcome, signatures=gains, warnings=warnings
    )


def signature_gains(
    meta_graph: MetaGraphDef, plans: Mapping[str, Plan]
) -> dict[str, SignatureGain]:
    """Add up what is predicted of the functions that each signature calls."""
    graph_def = meta_graph.graph_def
    library = conversion.library_of(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    gains = {}
    for name, signature in meta_graph.signature_def.items():
        roots = (t.name.partition(":")[0] for t in signature.outputs.values())
        present = [nodes[root] for root in roots if root in nodes]
        called = conversion.reachable_from(present, library) or (MAIN,)
        found = [plans[each] for each in called if each in plans]
        if found:
            gains[name] = _sum(found)
    if not meta_graph.signature_def and MAIN in plans:
        gains["graph"] = _sum([plans[MAIN]])
    return gains


def _sum(plans: Iterable[Plan]) -> SignatureGain:
    seconds = [(plan.seconds_before, plan.seconds_after) for plan in plans]
    return SignatureGain(sum(b for b, _ in seconds), sum(a for _, a in seconds))


def _refuse_mixed(graph_def: GraphDef) -> None:
    found = products_in_16_bits(graph_def)
    if found:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        raise AlreadyMixedError(
            f"the model is in mixed precision already: {counts}; it was left as it is. "
            "One that was converted goes back to float32 with --to float32."
        )


def _unmatched(patterns: Iterable[str], graph_def: GraphDef) -> list[str]:
    """Say which exclusions find no operation."""
    names = tuple(names_in(graph_def))
    return [
        f"exclude: {pattern!r} matches no operation of the model"
        for pattern in patterns
        if not any(map(finder([pattern]), names))
    ]


def _unknown(graph_def: GraphDef) -> list[str]:
    return [
        f"this TensorFlow does not know the op {op} ({count} nodes); they stay float32"
        for op, count in sorted(unknown_ops(graph_def).items())
    ]


def _list_new_ops(meta_graph: MetaGraphDef) -> None:
    """Name the ops that were put in, where a model lists what it is made of."""
    from tensorflow.python.framework import op_def_registry

    listed = meta_graph.meta_info_def.stripped_op_list.op
    if not listed:
        return
    known = {op.name for op in listed}
    for name in ("Cast", "Identity"):
        if name not in known:
            listed.add().CopyFrom(op_def_registry.get(name))
