"""Convert the folder of a SavedModel, or the file of a frozen graph."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.graph.op_table import CONSTANT_OPS, INPUT_OPS
from grappler_pass.graph.type_slots import DTYPE_ENUMS
from grappler_pass.graph.view import Item, split_input
from grappler_pass.rewriting.named_graphs import name_in
from tf_amp.errors import ConfigError
from tf_amp.run import progress
from tf_amp.tools.convert import back, comparison, mixing
from tf_amp.tools.convert.files import stored_models, writing
from tf_amp.tools.convert.files.stored_models import frozen_extras, frozen_graph
from tf_amp.tools.convert.files.variables_file import VariablesFile
from tf_amp.tools.convert.mixing import Mixed
from tf_amp.tools.convert.options import FLOAT32, Job
from tf_amp.tools.convert.planner import Planner
from tf_amp.tools.convert.report import ConversionReport
from tf_amp.tools.convert.weights.low_signatures import retype_signatures

# That nobody reads, and is no result.
_NO_RESULTS = CONSTANT_OPS | INPUT_OPS | {"NoOp"}


def convert_saved_model(job: Job, draft: pathlib.Path) -> ConversionReport:
    """Write the converted model to a folder that does not exist yet."""
    model = stored_models.saved_model(job.given)
    has_signatures = any(
        not name.startswith("__")
        for meta_graph in model.meta_graphs
        for name in meta_graph.signature_def
    )
    if job.options.verify and not has_signatures:
        raise ConfigError(
            f"--verify: {job.source} has no signature that could be run; export it "
            "with one, or convert it without --verify (verify=True)."
        )
    back.refuse_converted(job.given / stored_models.EXTRAS)
    file = VariablesFile.of(job.given)
    if file is not None:
        file.check()
    seen, unobserved = comparison.ranges_of_model(job)
    planner = mixing.planner_for(job.options, model.meta_graphs[0].graph_def, seen)
    low_io = _retype_signatures(job, model, planner)
    mixed = _mix(job, model, planner, file)
    _write(job, draft, model, mixed, file)
    warnings = list(mixed.warnings)
    if not has_signatures:
        warnings.append(
            "the model has no signatures; the functions of its objects were converted"
        )
    warnings += (*mixing.size_remarks(job.options, mixed.plans), *unobserved)
    found = {**mixed._asdict(), "low_io": low_io}
    if job.options.verify:
        found["verifications"], unverified = comparison.compared_signatures(
            job, draft, mixed.low_dtype
        )
        warnings += unverified
    report = job.report(draft, **{**found, "warnings": tuple(warnings)})
    extras = draft / stored_models.EXTRAS
    report.save(extras)
    original = stored_models.saved_model(job.given)
    back.keep(original, (each.graph_def for each in original.meta_graphs), extras)
    return report


def _retype_signatures(
    job: Job, model: SavedModel, planner: Planner
) -> tuple[str, ...]:
    """Put the signatures in 16 bits if that is asked for; return what changes."""
    if job.options.keep_io:
        return ()
    low_dtype = DTYPE_ENUMS[planner.settings.low_dtype]
    changed = (retype_signatures(graph, low_dtype) for graph in model.meta_graphs)
    found = tuple(dict.fromkeys(name for names in changed for name in names))
    if not found:
        raise ConfigError(
            f"--no-keep-io (keep_io=False): {job.source} has no signature with float32 "
            "inputs or outputs."
        )
    return found


def _mix(
    job: Job, model: SavedModel, planner: Planner, file: VariablesFile | None
) -> Mixed:
    """Rewrite every graph of a model in place; return what came of the first."""
    low = job.options.weights != FLOAT32
    if low and len(model.meta_graphs) > 1:
        tags = [list(m.meta_info_def.tags) for m in model.meta_graphs]
        raise ConfigError(
            f"--weights low: {job.source} holds {len(tags)} graphs (tags {tags}) that "
            "share their variables; only models with one graph can store them low."
        )
    found = [
        mixing.mix(meta_graph, _item_of(meta_graph), planner, job.options, file)
        for meta_graph in model.meta_graphs
    ]
    return mixing.merged(found)


def _write(
    job: Job,
    draft: pathlib.Path,
    model: SavedModel,
    mixed: Mixed,
    file: VariablesFile | None,
) -> None:
    progress.report("writing")
    stored = frozenset(mixed.storage.variables)
    stored_models.write_saved_model(model, job.given, draft, variables=not stored)
    if stored and file is not None:
        dtype = np.dtype(NUMPY_DTYPES[DTYPE_ENUMS[mixed.low_dtype]])
        file.write(draft / stored_models.VARIABLES, stored, dtype)


def convert_frozen(job: Job, draft: pathlib.Path) -> ConversionReport:
    """Write the converted graph to a file that does not exist yet.

    The folder of the report is in place before the file is, so that the file, which is
    what programs look for, never lies there without it.
    """
    if not job.options.keep_io:
        raise ConfigError(
            f"--no-keep-io (keep_io=False): {job.source} is a frozen graph, which has "
            "no signatures whose dtypes could change; other models have."
        )
    graph_def = frozen_graph(job.given)
    back.refuse_converted(frozen_extras(job.given))
    item = _frozen_item(graph_def)
    seen = comparison.ranges_of_graph(job, graph_def, item)
    planner = mixing.planner_for(job.options, graph_def, seen)
    meta_graph = MetaGraphDef(graph_def=graph_def)
    mixed = mixing.mix(meta_graph, item, planner, job.options, None)
    draft.write_bytes(meta_graph.graph_def.SerializeToString())
    warnings = (*mixed.warnings, *mixing.size_remarks(job.options, mixed.plans))
    found = mixed._replace(warnings=warnings)._asdict()
    if job.options.verify:
        found["verifications"] = comparison.compared_graphs(
            job, draft, item, mixed.low_dtype
        )
    report = job.report(draft, **found)
    with writing.replacing(frozen_extras(job.target)) as extras:
        report.save(extras)
        back.keep(graph_def, [graph_def], extras)
    return report


def _item_of(meta_graph: MetaGraphDef) -> Item:
    """Return what a SavedModel's graph is run for, and what else names its nodes."""
    fetch: list[str] = []
    feed: list[str] = []
    for _, signature in sorted(meta_graph.signature_def.items()):
        fetch += _nodes_of(signature.outputs)
        feed += _nodes_of(signature.inputs)
    present = {node.name for node in meta_graph.graph_def.node}
    named = [name for name in _named(meta_graph) if name in present]
    return Item(_unique(fetch), _unique(feed), _unique(named))


def _frozen_item(graph_def: GraphDef) -> Item:
    """Return what a bare graph is run for: whatever nobody reads."""
    read = {split_input(text)[0] for node in graph_def.node for text in node.input}
    fetch = (
        node.name
        for node in graph_def.node
        if node.name not in read and node.op not in _NO_RESULTS
    )
    feed = (node.name for node in graph_def.node if node.op in INPUT_OPS)
    return Item(_unique(fetch), _unique(feed))


def _nodes_of(tensors: Mapping[str, TensorInfo]) -> Iterator[str]:
    """Yield the nodes of tensors in one order, which a protobuf's map has not."""
    for _, info in sorted(tensors.items()):
        yield from _names(info)


def _names(info: TensorInfo) -> Iterator[str]:
    """Yield the nodes whose tensors a signature names."""
    kind = info.WhichOneof("encoding")
    if kind == "coo_sparse":
        sparse = info.coo_sparse
        yield from map(
            name_in,
            (
                sparse.values_tensor_name,
                sparse.indices_tensor_name,
                sparse.dense_shape_tensor_name,
            ),
        )
    elif kind == "composite_tensor":
        for component in info.composite_tensor.components:
            yield from _names(component)
    elif kind == "name":
        yield name_in(info.name)


def _named(meta_graph: MetaGraphDef) -> Iterator[str]:
    """Yield the nodes that savers, assets and collections name."""
    saver = meta_graph.saver_def
    yield from map(
        name_in,
        (saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name),
    )
    for asset in meta_graph.asset_file_def:
        yield from _names(asset.tensor_info)
    for collection in meta_graph.collection_def.values():
        yield from map(name_in, collection.node_list.value)
        for value in collection.bytes_list.value:
            yield from _variable_names(value)


def _variable_names(value: bytes) -> Iterator[str]:
    """Yield what a stored description of a variable names, if it is one."""
    try:
        variable = VariableDef.FromString(value)
    except DecodeError:
        return
    yield from map(
        name_in,
        (variable.variable_name, variable.initializer_name, variable.snapshot_name),
    )


def _unique(names: Iterator[str] | list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))
