"""Convert the folder of a SavedModel or the file of a frozen graph, and take it back.

The structure of a model as it was is kept beside the converted one. Large constants are
left out of it: their nodes are still in the converted graph, under the same names, in
float32 or in 16 bits. Models are run where ranges to convert by are asked for, or a
comparison of what both compute.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.functions.conversion import nodes_by_function
from grappler_pass.graph.editing import name_in
from grappler_pass.graph.op_table import CONSTANT_OPS, INPUT_OPS
from grappler_pass.graph.type_slots import DTYPE_ENUMS
from grappler_pass.graph.view import Item
from tf_amp.config.ranges import Ranges
from tf_amp.errors import (
    AlreadyMixedError,
    AmpError,
    ConfigError,
    NotMeasurableError,
    UnfitDataError,
    UnreadableModelError,
)
from tf_amp.run import batches as data
from tf_amp.run import progress
from tf_amp.run.graph_cases import rounded
from tf_amp.run.graph_copy import Array
from tf_amp.tools.convert import files, rewriting
from tf_amp.tools.convert.job import FLOAT32, JSON_FILE, ConversionJob, ConversionReport
from tf_amp.tools.convert.retyping import retype_signatures
from tf_amp.tools.convert.rewriting import unmixed
from tf_amp.tools.convert.weights import VariablesFile
from tf_amp.tools.ranges import joined, ranges_of
from tf_amp.tools.verify.cases import named_leaves
from tf_amp.tools.verify.verification import Verification
from tf_amp.tools.verify.verifying import Controls

# Without readers, and no results.
_NO_RESULTS = CONSTANT_OPS | INPUT_OPS | {"NoOp"}


def write(job: ConversionJob, draft: pathlib.Path) -> ConversionReport:
    """Write what a job asks for to a file or folder that does not exist yet.

    A frozen graph goes the way of a SavedModel of one graph without signatures. The
    folder of its report is in place before the file is, so that the file, which is what
    programs look for, never lies there without it.
    """
    if job.options.to == FLOAT32:
        _take_back(job.path, draft)
        return job.report(draft)
    is_frozen = job.path.is_file()
    model = files.read(job.path)
    has_signatures = is_frozen or any(
        not name.startswith("__")
        for meta_graph in model.meta_graphs
        for name in meta_graph.signature_def
    )
    _refuse_options(job, is_frozen=is_frozen, has_signatures=has_signatures)
    _refuse_converted(files.extras_of(job.path))
    file = VariablesFile.of(job.path)
    if file is not None:
        file.check()
    item = _item_of(model.meta_graphs[0], is_frozen)
    seen, unobserved = ranges_of_model(job, item)
    mixed = _mixed(job, model, file, seen)
    progress.report("writing")
    stored = frozenset(mixed.storage.variables)
    files.write(model, job.path, draft, variables=not stored)
    if stored and file is not None:
        dtype = np.dtype(NUMPY_DTYPES[DTYPE_ENUMS[mixed.low_dtype]])
        file.write(draft / files.VARIABLES, stored, dtype)
    warnings = list(mixed.warnings)
    if not has_signatures:
        warnings.append(
            "the model has no signatures; the functions of its objects were converted"
        )
    warnings += (*rewriting.size_remarks(job.options, mixed.plans), *unobserved)
    fields = {**vars(mixed)}
    if job.options.verify:
        fields["verifications"], unverified = compared_models(
            job, draft, item, mixed.low_dtype
        )
        warnings += unverified
    report = job.report(draft, **{**fields, "warnings": tuple(warnings)})
    with contextlib.ExitStack() as stack:
        extras = draft / files.EXTRAS
        if is_frozen:
            extras = stack.enter_context(files.replacing(files.beside(job.target)))
        report.save(extras)
        _keep(job.path, extras)
    return report


def _refuse_options(
    job: ConversionJob, *, is_frozen: bool, has_signatures: bool
) -> None:
    """Refuse what is asked for of a model that lacks what it takes."""
    if is_frozen and not job.options.keep_io:
        raise ConfigError(
            f"--no-keep-io (keep_io=False): {job.source} is a frozen graph, which has "
            "no signatures whose dtypes could change; other models have."
        )
    if job.options.verify and not has_signatures:
        raise ConfigError(
            f"--verify: {job.source} has no signature that could be run; export it "
            "with one, or convert it without --verify (verify=True)."
        )


def _mixed(
    job: ConversionJob,
    model: SavedModel,
    file: VariablesFile | None,
    seen: Ranges | None,
) -> rewriting.Mixed:
    """Rewrite every graph of a model in place, by ranges that were seen on data."""
    options, graphs = job.options, model.meta_graphs
    planner = rewriting.planner_for(options, graphs[0].graph_def, seen)
    mixed = rewriting.Mixed(planner.settings.low_dtype, planner.device_profile)
    if not options.keep_io:
        low_dtype = DTYPE_ENUMS[planner.settings.low_dtype]
        changed = (retype_signatures(each, low_dtype) for each in graphs)
        mixed.low_io = tuple(dict.fromkeys(name for names in changed for name in names))
        if not mixed.low_io:
            raise ConfigError(
                f"--no-keep-io (keep_io=False): {job.source} has no signature with "
                "float32 inputs or outputs."
            )
    if options.weights != FLOAT32 and len(graphs) > 1:
        tags = [list(m.meta_info_def.tags) for m in graphs]
        raise ConfigError(
            f"--weights low: {job.source} holds {len(tags)} graphs (tags {tags}) that "
            "share their variables; only models with one graph can store them low."
        )
    for meta_graph in graphs:
        # Signatures may name other tensors by now.
        item = _item_of(meta_graph, job.path.is_file())
        rewriting.mix(meta_graph, item, planner, options, file, mixed)
    return mixed


def _item_of(meta_graph: MetaGraphDef, is_frozen: bool) -> Item:
    """Return what a graph is run for, and what else names its nodes.

    A bare graph is run for whatever has no reader. Of a SavedModel's the signatures say
    it; savers, assets and collections name further nodes.
    """
    nodes = meta_graph.graph_def.node
    if is_frozen:
        read = {name_in(text) for node in nodes for text in node.input}
        ends = (node for node in nodes if node.op not in _NO_RESULTS)
        fetch = [node.name for node in ends if node.name not in read]
        feed = [node.name for node in nodes if node.op in INPUT_OPS]
        return Item(_unique(fetch), _unique(feed))
    fetch, feed = [], []
    for _, signature in sorted(meta_graph.signature_def.items()):
        fetch += _nodes_of(signature.outputs)
        feed += _nodes_of(signature.inputs)
    saver = meta_graph.saver_def
    named = [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    for asset in meta_graph.asset_file_def:
        named += _texts_of(asset.tensor_info)
    for collection in meta_graph.collection_def.values():
        named += collection.node_list.value
        for value in collection.bytes_list.value:
            # It may be the stored description of a variable.
            with contextlib.suppress(DecodeError):
                each = VariableDef.FromString(value)
                named += (each.variable_name, each.initializer_name, each.snapshot_name)
    present = {node.name for node in nodes}
    preserve = [name for name in map(name_in, named) if name in present]
    return Item(_unique(fetch), _unique(feed), _unique(preserve))


def _nodes_of(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Name the nodes of tensors in one order, which a protobuf's map has not."""
    infos = (info for _, info in sorted(tensors.items()))
    return [name_in(text) for info in infos for text in _texts_of(info)]


def _texts_of(info: TensorInfo) -> Iterator[str]:
    """Yield the tensors that a signature names as one."""
    kind = info.WhichOneof("encoding")
    if kind == "name":
        yield info.name
    elif kind == "coo_sparse":
        sparse = info.coo_sparse
        yield from (sparse.values_tensor_name, sparse.indices_tensor_name)
        yield sparse.dense_shape_tensor_name
    elif kind == "composite_tensor":
        for component in info.composite_tensor.components:
            yield from _texts_of(component)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


_FILE = "original.pb.gz"
_LEFT_OUT = "_left_out"
_LARGE_BYTES = 1024


def _keep(path: pathlib.Path, extras: pathlib.Path) -> None:
    """Write a model's graphs as they are into the folder of its report.

    Large constants lose their values, which are in the converted model, too.
    """
    original = files.read(path)
    for meta_graph in original.meta_graphs:
        for node in _constants(meta_graph.graph_def).values():
            if node.attr["value"].tensor.ByteSize() > _LARGE_BYTES:
                node.attr["value"].Clear()
                node.attr[_LEFT_OUT].b = True
    content = files.bytes_from_model(original, is_frozen=path.is_file())
    (extras / _FILE).write_bytes(gzip.compress(content, mtime=0))


def _take_back(given: pathlib.Path, draft: pathlib.Path) -> None:
    """Write what a converted model was to a path that does not exist yet."""
    converted, extras = files.read(given), files.extras_of(given)
    path = extras / _FILE
    if not path.is_file():
        raise UnreadableModelError(
            f"there is no {path}: only a model that tf-amp has converted, with all "
            "that was written beside it, goes back to float32."
        )
    with files.unreadable(f"{path} is damaged", OSError, EOFError, DecodeError):
        content = gzip.decompress(path.read_bytes())
        original = files.model_from_bytes(content, is_frozen=given.is_file())
    for before, after in zip(original.meta_graphs, converted.meta_graphs, strict=True):
        _fill_constants(before.graph_def, after.graph_def)
    file = VariablesFile.of(given)
    files.write(original, given, draft, variables=file is None)
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
            f"{report['low_dtype']}; it was left unchanged. It goes back to float32 "
            "with --to float32."
        )


def _report(extras: pathlib.Path) -> dict[str, Any]:
    path = extras / JSON_FILE
    with files.unreadable(f"{path} cannot be read", OSError, ValueError):
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _fill_constants(original: GraphDef, converted: GraphDef) -> None:
    """Put the values left out, in float32, back into `original`, in place."""
    constants = _constants(converted)
    for key, node in _constants(original).items():
        if _LEFT_OUT not in node.attr:
            continue
        if key not in constants:
            raise UnreadableModelError(
                f"constant {key[1]!r} is gone from the converted model; it was "
                "changed since it was written."
            )
        del node.attr[_LEFT_OUT]
        node.attr["value"].CopyFrom(constants[key].attr["value"])
        # The type is the one that the node says.
        value, dtype = node.attr["value"].tensor, node.attr["dtype"].type
        if value.dtype != dtype:
            array = tf.make_ndarray(value).astype(np.float32)
            value.CopyFrom(tf.make_tensor_proto(array, dtype=dtype))


def _constants(graph_def: GraphDef) -> Mapping[tuple[str, str], NodeDef]:
    return {
        (function, str(node.name)): node
        for function, nodes in nodes_by_function(graph_def).items()
        for node in nodes
        if node.op == "Const"
    }


_BATCH = 8
_DEFAULT = "serving_default"


class _Part(NamedTuple):
    """What can be run of a stored model: one of its signatures, or a frozen graph.

    Attributes:
      function: its ConcreteFunction, or the GraphDef.
      call: takes its inputs by name, with float32 where the model takes 16 bits.
      variables: that it uses.
    """

    function: Any
    call: Callable[..., Any]
    variables: Sequence[Any] = ()


def _parts_of(path: pathlib.Path, item: Item) -> dict[str, _Part]:
    """Load a model for running it as it is; `item` is of a frozen graph."""
    with unmixed():
        if path.is_file():
            graph_def = files.read(path).meta_graphs[0].graph_def
            return {"graph": _Part(graph_def, _function_of(graph_def, item))}
        signatures = data.loaded_signatures(path)

    def call(signature: Any, **inputs: tf.Tensor) -> Any:
        specs = signature.structured_input_signature[1]
        for name, value in inputs.items():
            if value.dtype.is_floating:
                inputs[name] = tf.cast(value, specs[name].dtype)
        return signature(**inputs)

    return {
        name: _Part(function, functools.partial(call, function), function.variables)
        for name, function in signatures.items()
    }


def compared_models(
    job: ConversionJob, draft: pathlib.Path, item: Item, low_dtype: str
) -> tuple[dict[str, Verification], tuple[str, ...]]:
    """Compare each part of both models, and say which could not be fed.

    NotMeasurableError: the model cannot be run on synthetic inputs.
    """
    originals, converted = (_parts_of(path, item) for path in (job.path, draft))
    path, size = job.options.calibration, job.options.batch or _BATCH
    verifications: dict[str, Verification] = {}
    remarks: list[str] = []
    for name, part in progress.each(tuple(originals.items()), "comparing signatures"):
        specs = data.specs_of(part.function)
        words = "synthetic inputs" if path is None else str(path)
        try:
            # The user's first ones, if there are any.
            inputs = (
                {spec.name: data.made_up(spec, size) for spec in specs}
                if path is None
                else data.batches_from_file(path, specs)[0]
            )
        except UnfitDataError as error:
            remarks.append(f"{name} is not verified: {error}")
            continue
        verifications[name] = compared(
            part.call,
            converted[name].call,
            inputs,
            low_dtype=low_dtype,
            variables=part.variables,
            name=f"{name}, on {words}",
        )
    return verifications, tuple(remarks)


def compared(
    float32: Callable[..., Any],
    mixed: Callable[..., Any],
    inputs: data.Batch,
    *,
    low_dtype: str,
    name: str,
    variables: Iterable[Any] = (),
) -> Verification:
    """Run both functions on the same inputs and return whether the numbers hold.

    Args:
      float32: returns any structure of tensors; run twice, for its noise, and with
        inputs and variables rounded to 16 bits.
      mixed: returns the same structure.
      inputs: by name.
      low_dtype: of `mixed`: "bfloat16" or "float16".
      name: of what is compared, human-readable.
      variables: that `float32` uses.
    """
    moved = {
        key: rounded(np.asarray(value), low_dtype) for key, value in inputs.items()
    }
    try:
        expected, in_16_bits = _results(float32, inputs), _results(mixed, inputs)
        noise = _results(float32, inputs)
        stored = [(variable, variable.numpy()) for variable in variables]
        try:
            for variable, value in stored:
                variable.assign(rounded(value, low_dtype))
            controls = Controls(expected, noise, _results(float32, moved), low_dtype)
        finally:
            for variable, value in stored:
                variable.assign(value)
    except tf.errors.OpError as error:
        raise NotMeasurableError(
            f"verify: the model fails on {name.partition(', on ')[2]}: "
            f"{error.message}. Give inputs that suit it with --calibration."
        ) from error
    return controls.verification_of(in_16_bits, {}, graph=name)


def _results(function: Callable[..., Any], inputs: data.Batch) -> dict[str, Array]:
    # TensorFlow 2.16 calls no signature of a v1 model with arrays.
    tensors = {key: tf.constant(value) for key, value in inputs.items()}
    return {n: np.asarray(value) for n, value in named_leaves(function(**tensors))}


def ranges_of_model(
    job: ConversionJob, item: Item
) -> tuple[Ranges | None, tuple[str, ...]]:
    """Return what the tensors of a model keep to, in all signatures that fit.

    None without data. With it comes what is to be said of signatures that did not run;
    if none did, that is the error. `item` is of a frozen graph.
    """
    path = job.options.calibration
    if path is None:
        return None, ()
    parts = _parts_of(job.path, item)
    if not parts:
        raise ConfigError(
            f"--calibration: {job.source} has no signature that could be fed; export "
            "it with one."
        )
    ranges: list[Ranges] = []
    errors: dict[str, AmpError] = {}
    for name, part in parts.items():
        try:
            batches = data.batches_from_file(path, data.specs_of(part.function))
            ranges.append(ranges_of(part.function, batches, fetches=item.fetch))
        except (UnfitDataError, NotMeasurableError) as error:
            errors[name] = error
    if not ranges:
        # Of the signature whose inputs the file's arrays name, else the default one.
        names: set[str] = set()
        with contextlib.suppress(*data.UNREADABLE):
            with np.load(path, allow_pickle=False) as archive:
                names = set(archive.files)
        named = (
            name
            for name, part in parts.items()
            if {spec.name for spec in data.specs_of(part.function)} == names
        )
        default = _DEFAULT if _DEFAULT in parts else next(iter(parts))
        raise errors[next(named, default)]
    return joined(ranges), tuple(
        f"{name} did not run on the data, and what it alone computes may leave the "
        f"type's range: {why}"
        for name, why in errors.items()
    )


def _function_of(graph_def: GraphDef, item: Item) -> Callable[..., Any]:
    """Return what runs a bare graph, given its inputs by name."""
    specs = data.specs_of(graph_def)

    def run(*inputs: Any) -> list[Any]:
        fed = {s.name: value for s, value in zip(specs, inputs, strict=True)}
        results: list[Any] = tf.graph_util.import_graph_def(
            graph_def, fed, [f"{name}:0" for name in item.fetch], name=""
        )
        return results

    signature = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
    traced = tf.function(run, input_signature=signature).get_concrete_function()
    return lambda **inputs: traced(*(inputs[spec.name] for spec in specs))
