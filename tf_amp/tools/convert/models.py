"""Convert the folder of a SavedModel or the file of a frozen graph, and take it back.

The structure of a model as it was is kept beside the converted one. Large constants are
left out of it: their nodes are still in the converted graph, under the same names, in
float32 or in 16 bits.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.functions.conversion import bodies_of
from grappler_pass.graph.editing import name_in
from grappler_pass.graph.op_table import CONSTANT_OPS, INPUT_OPS
from grappler_pass.graph.type_slots import DTYPE_ENUMS
from grappler_pass.graph.view import Item, split_input
from tf_amp.errors import AlreadyMixedError, ConfigError, UnreadableModelError
from tf_amp.run import progress
from tf_amp.tools.convert import comparison, files, rewriting
from tf_amp.tools.convert.files import frozen_extras, frozen_graph
from tf_amp.tools.convert.job import FLOAT32, JSON_FILE, ConversionReport, Job
from tf_amp.tools.convert.retyping import retype_signatures
from tf_amp.tools.convert.rewriting import Mixed, Planner
from tf_amp.tools.convert.weights import VariablesFile

# That nobody reads, and is no result.
_NO_RESULTS = CONSTANT_OPS | INPUT_OPS | {"NoOp"}


def write(job: Job, draft: pathlib.Path) -> ConversionReport:
    """Write what a job asks for to a file or folder that does not exist yet."""
    is_frozen = job.kind == files.Kind.FROZEN.value
    if job.options.to != FLOAT32:
        return (_convert_frozen if is_frozen else _convert_saved_model)(job, draft)
    (_take_frozen_graph_back if is_frozen else _take_saved_model_back)(job.given, draft)
    return job.report(draft)


def _convert_saved_model(job: Job, draft: pathlib.Path) -> ConversionReport:
    """Write the converted model to a folder that does not exist yet."""
    model = files.saved_model(job.given)
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
    _refuse_converted(job.given / files.EXTRAS)
    file = VariablesFile.of(job.given)
    if file is not None:
        file.check()
    seen, unobserved = comparison.ranges_of_model(job)
    planner = rewriting.planner_for(job.options, model.meta_graphs[0].graph_def, seen)
    low_io = _retype_signatures(job, model, planner)
    mixed = _mix(job, model, planner, file)
    _write(job, draft, model, mixed, file)
    warnings = list(mixed.warnings)
    if not has_signatures:
        warnings.append(
            "the model has no signatures; the functions of its objects were converted"
        )
    warnings += (*rewriting.size_remarks(job.options, mixed.plans), *unobserved)
    found = {**mixed._asdict(), "low_io": low_io}
    if job.options.verify:
        found["verifications"], unverified = comparison.compared_signatures(
            job, draft, mixed.low_dtype
        )
        warnings += unverified
    report = job.report(draft, **{**found, "warnings": tuple(warnings)})
    extras = draft / files.EXTRAS
    report.save(extras)
    original = files.saved_model(job.given)
    _keep(original, (each.graph_def for each in original.meta_graphs), extras)
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
        rewriting.mix(meta_graph, _item_of(meta_graph), planner, job.options, file)
        for meta_graph in model.meta_graphs
    ]
    return rewriting.merged(found)


def _write(
    job: Job,
    draft: pathlib.Path,
    model: SavedModel,
    mixed: Mixed,
    file: VariablesFile | None,
) -> None:
    progress.report("writing")
    stored = frozenset(mixed.storage.variables)
    files.write_saved_model(model, job.given, draft, variables=not stored)
    if stored and file is not None:
        dtype = np.dtype(NUMPY_DTYPES[DTYPE_ENUMS[mixed.low_dtype]])
        file.write(draft / files.VARIABLES, stored, dtype)


def _convert_frozen(job: Job, draft: pathlib.Path) -> ConversionReport:
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
    _refuse_converted(frozen_extras(job.given))
    item = _frozen_item(graph_def)
    seen = comparison.ranges_of_graph(job, graph_def, item)
    planner = rewriting.planner_for(job.options, graph_def, seen)
    meta_graph = MetaGraphDef(graph_def=graph_def)
    mixed = rewriting.mix(meta_graph, item, planner, job.options, None)
    draft.write_bytes(meta_graph.graph_def.SerializeToString())
    warnings = (*mixed.warnings, *rewriting.size_remarks(job.options, mixed.plans))
    found = mixed._replace(warnings=warnings)._asdict()
    if job.options.verify:
        found["verifications"] = comparison.compared_graphs(
            job, draft, item, mixed.low_dtype
        )
    report = job.report(draft, **found)
    with files.replacing(frozen_extras(job.target)) as extras:
        report.save(extras)
        _keep(graph_def, [graph_def], extras)
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


_FILE = "original.pb.gz"
_LEFT_OUT = "_left_out"
_LARGE_BYTES = 1024

_Proto = TypeVar("_Proto", bound=Any)


def _keep(original: Any, graphs: Iterable[GraphDef], extras: pathlib.Path) -> None:
    """Write a model's protobuf into the folder of its report.

    It is changed in place: large constants of the graphs within lose their values.
    """
    for graph_def in graphs:
        for node in _constants(graph_def).values():
            if node.attr["value"].tensor.ByteSize() > _LARGE_BYTES:
                node.attr["value"].Clear()
                node.attr[_LEFT_OUT].b = True
    written = gzip.compress(original.SerializeToString(), mtime=0)
    (extras / _FILE).write_bytes(written)


def _take_frozen_graph_back(given: pathlib.Path, draft: pathlib.Path) -> None:
    """Write what a converted frozen graph was to a file."""
    converted = files.frozen_graph(given)
    original = _kept(files.frozen_extras(given), type(converted)())
    _fill_constants(original, converted)
    draft.write_bytes(original.SerializeToString())


def _take_saved_model_back(given: pathlib.Path, draft: pathlib.Path) -> None:
    """Write what a converted SavedModel was to a folder that does not exist yet."""
    converted = files.saved_model(given)
    extras = given / files.EXTRAS
    original = _kept(extras, type(converted)())
    for own, other in zip(original.meta_graphs, converted.meta_graphs, strict=True):
        _fill_constants(own.graph_def, other.graph_def)
    file = VariablesFile.of(given)
    files.write_saved_model(original, given, draft, variables=file is None)
    if file is not None:
        stored = _report(extras).get("storage", {}).get("variables", ())
        target = draft / files.VARIABLES
        file.write(target, frozenset(stored), np.dtype(np.float32))


def _refuse_converted(extras: pathlib.Path) -> None:
    """Raise AlreadyMixedError for a model with the report of a conversion beside it."""
    if not (extras / JSON_FILE).is_file():
        return
    report = _report(extras)
    stored = report.get("storage", {})
    counts = {name: len(stored.get(name, ())) for name in ("variables", "constants")}
    counts["inputs and outputs"] = len(report.get("low_io", ()))
    if any(counts.values()):
        listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise AlreadyMixedError(
            f"tf-amp has converted the model already: {listed} are in "
            f"{report['low_dtype']}; it was left as it is. It goes back to float32 "
            "with --to float32."
        )


def _report(extras: pathlib.Path) -> dict[str, Any]:
    path = extras / JSON_FILE
    with files.unreadable(f"{path} cannot be read", OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _kept(extras: pathlib.Path, proto: _Proto) -> _Proto:
    """Fill a protobuf with what `keep` wrote, large constants still left out."""
    path = extras / _FILE
    if not path.is_file():
        raise UnreadableModelError(
            f"there is no {path}: only a model that tf-amp has converted, with all "
            "that was written beside it, goes back to float32."
        )
    errors = (OSError, EOFError, DecodeError)
    with files.unreadable(f"{path} is damaged", *errors):
        proto.ParseFromString(gzip.decompress(path.read_bytes()))
    return proto


def _fill_constants(original: GraphDef, converted: GraphDef) -> None:
    """Put the values left out, in float32, back into `original`, in place."""
    found = _constants(converted)
    for key, node in _constants(original).items():
        if _LEFT_OUT not in node.attr:
            continue
        if key not in found:
            raise UnreadableModelError(
                f"constant {key[1]!r} is gone from the converted model; it was "
                "changed since it was written."
            )
        del node.attr[_LEFT_OUT]
        node.attr["value"].CopyFrom(found[key].attr["value"])
        _restore_type(node)


def _restore_type(node: NodeDef) -> None:
    """Make the value of a constant one of the type that its node says."""
    proto = node.attr["value"].tensor
    wanted = node.attr["dtype"].type
    if proto.dtype == wanted:
        return
    value = tf.make_ndarray(proto).astype(np.float32)
    proto.CopyFrom(tf.make_tensor_proto(value, dtype=wanted))


def _constants(graph_def: GraphDef) -> Mapping[tuple[str, str], NodeDef]:
    return {
        (function, str(node.name)): node
        for function, nodes in bodies_of(graph_def).items()
        for node in nodes
        if node.op == "Const"
    }
