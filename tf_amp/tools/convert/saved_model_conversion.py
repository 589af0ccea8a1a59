"""Convert the folder of a SavedModel."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from grappler_pass.graph.type_slots import DTYPE_ENUMS
from tf_amp.errors import ConfigError
from tf_amp.tools import progress
from tf_amp.tools.convert import back, calibrating, comparison, mixing, originals
from tf_amp.tools.convert.files import saved_model
from tf_amp.tools.convert.files.variables_file import VariablesFile
from tf_amp.tools.convert.options import FLOAT32
from tf_amp.tools.convert.weights import storing
from tf_amp.tools.convert.weights.interfaces import item_of
from tf_amp.tools.convert.weights.low_signatures import retype_signatures

if TYPE_CHECKING:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    from tf_amp.tools.convert.job import Job
    from tf_amp.tools.convert.mixing import Mixed
    from tf_amp.tools.convert.planner import Planner
    from tf_amp.tools.convert.report import ConversionReport


def convert_saved_model(job: Job, draft: pathlib.Path) -> ConversionReport:
    """Write the converted model to a folder that does not exist yet.

    Raises:
      AlreadyMixedError: the model computes in 16 bits already.
      ConfigError: weights cannot be stored low, no signature holds float32, or there
        is none to verify.
      UnreadableModelError: the model is damaged, or was not converted by this package.
      OSError: the folder cannot be written.
    """
    if job.options.to == FLOAT32:
        return _convert_back(job, draft)
    model = saved_model.read(job.given)
    _check_can_be_verified(job, model)
    back.refuse_converted(job.given / saved_model.EXTRAS)
    file = VariablesFile.of(job.given)
    if file is not None:
        file.check()
    calibration = calibrating.calibration_of_model(job)
    planner, device = mixing.planner_for(
        job.options, model.meta_graphs[0].graph_def, calibration.ranges
    )
    low_io = _retype_signatures(job, model, planner)
    mixed = _mix(job, model, planner, file)
    _write(job, draft, model, mixed, file)
    low_dtype = planner.settings.low_dtype
    compared = comparison.comparison_of(job, draft, low_dtype)
    report = job.mixed_report(
        mixed,
        device,
        low_dtype,
        written=draft,
        low_io=low_io,
        warnings=(
            *_remarks(model),
            *job.size_remarks(mixed),
            *calibration.remarks(),
            *compared.remarks(),
        ),
        verifications=compared.verifications,
    )
    extras = draft / saved_model.EXTRAS
    report.save(extras)
    original = saved_model.read(job.given)
    graphs = [meta_graph.graph_def for meta_graph in original.meta_graphs]
    originals.keep(original, graphs, extras / originals.FILE)
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
            f"keep_io=False: {job.source} has no signature with float32 inputs or "
            "outputs."
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
            f"weights='low': {job.source} holds {len(tags)} graphs (tags {tags}) that "
            "share their variables; only models with one graph can store them low."
        )
    found = [
        mixing.mix(meta_graph, item_of(meta_graph), planner, job.options, file)
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
    stored = bool(mixed.storage.variables) and file is not None
    saved_model.copy_rest(job.given, draft, variables=not stored)
    if stored and file is not None:
        target = draft / saved_model.VARIABLES
        storing.write_variables(file, target, mixed.storage, mixed.low_dtype)
    saved_model.write(model, draft)


def _convert_back(job: Job, draft: pathlib.Path) -> ConversionReport:
    converted = saved_model.read(job.given)
    extras = job.given / saved_model.EXTRAS
    original = back.original_of(extras, type(converted)())
    pairs = zip(original.meta_graphs, converted.meta_graphs, strict=True)
    for own, other in pairs:
        originals.fill_constants(own.graph_def, other.graph_def)
    file = VariablesFile.of(job.given)
    saved_model.copy_rest(job.given, draft, variables=file is None)
    if file is not None:
        back.write_variables(file, draft / saved_model.VARIABLES, extras)
    saved_model.write(original, draft)
    return job.float32_report(draft)


def _remarks(model: SavedModel) -> tuple[str, ...]:
    if _signatures(model):
        return ()
    return ("the model has no signatures; the functions of its objects were converted",)


def _check_can_be_verified(job: Job, model: SavedModel) -> None:
    if job.options.verify and not _signatures(model):
        raise ConfigError(
            f"verify: {job.source} has no signature that could be run; export it with "
            "one, or convert it without verify."
        )


def _signatures(model: SavedModel) -> tuple[str, ...]:
    return tuple(
        name
        for meta_graph in model.meta_graphs
        for name in meta_graph.signature_def
        if not name.startswith("__")
    )
