"""Convert a frozen graph: a file beside which the report lies in a folder."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from tf_amp.errors import ConfigError
from tf_amp.tools.convert import back, calibrating, comparison, mixing, originals
from tf_amp.tools.convert.files import frozen, writing
from tf_amp.tools.convert.options import FLOAT32
from tf_amp.tools.convert.weights.interfaces import frozen_item

if TYPE_CHECKING:
    from tf_amp.tools.convert.job import Job
    from tf_amp.tools.convert.report import ConversionReport


def convert_frozen(job: Job, draft: pathlib.Path) -> ConversionReport:
    """Write the converted graph to a file that does not exist yet.

    The folder of the report is in place before the file is, so that the file, which is
    what programs look for, never lies there without it.

    Raises:
      AlreadyMixedError: the graph computes in 16 bits already.
      ConfigError: signatures are to change, of which it has none.
      UnreadableModelError: the file is damaged, or was not converted by this package.
      OSError: the file cannot be written.
    """
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    if job.options.to == FLOAT32:
        return _convert_back(job, draft)
    if not job.options.keep_io:
        raise ConfigError(
            f"keep_io=False: {job.source} is a frozen graph, which has no signatures "
            "whose dtypes could change; SavedModels and .keras files have."
        )
    graph_def = frozen.read(job.given)
    back.refuse_converted(frozen.report_folder(job.given))
    item = frozen_item(graph_def)
    seen = calibrating.ranges_in_graph(job, graph_def, item)
    planner, device = mixing.planner_for(job.options, graph_def, seen)
    meta_graph = MetaGraphDef(graph_def=graph_def)
    mixed = mixing.mix(meta_graph, item, planner, job.options, None)
    draft.write_bytes(meta_graph.graph_def.SerializeToString())
    low_dtype = planner.settings.low_dtype
    report = job.mixed_report(
        mixed,
        device,
        low_dtype,
        written=draft,
        warnings=job.size_remarks(mixed),
        verifications=comparison.frozen_verifications(job, draft, item, low_dtype),
    )
    with writing.replacing(frozen.report_folder(job.target)) as extras:
        report.save(extras)
        originals.keep(graph_def, [graph_def], extras / originals.FILE)
    return report


def _convert_back(job: Job, draft: pathlib.Path) -> ConversionReport:
    converted = frozen.read(job.given)
    extras = frozen.report_folder(job.given)
    original = back.original_of(extras, type(converted)())
    originals.fill_constants(original, converted)
    draft.write_bytes(original.SerializeToString())
    return job.float32_report(draft)
