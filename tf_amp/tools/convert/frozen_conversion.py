"""Convert a frozen graph: a file beside which the report lies in a folder."""

from __future__ import annotations

import pathlib

from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

from tf_amp.errors import ConfigError
from tf_amp.tools.convert import back, comparison, mixing
from tf_amp.tools.convert.files import writing
from tf_amp.tools.convert.files.stored_models import frozen_extras, frozen_graph
from tf_amp.tools.convert.options import Job
from tf_amp.tools.convert.report import ConversionReport
from tf_amp.tools.convert.weights.interfaces import frozen_item


def convert_frozen(job: Job, draft: pathlib.Path) -> ConversionReport:
    """Write the converted graph to a file that does not exist yet.

    The folder of the report is in place before the file is, so that the file, which is
    what programs look for, never lies there without it.
    """
    if not job.options.keep_io:
        raise ConfigError(
            f"keep_io=False: {job.source} is a frozen graph, which has no signatures "
            "whose dtypes could change; SavedModels and .keras files have."
        )
    graph_def = frozen_graph(job.given)
    back.refuse_converted(frozen_extras(job.given))
    item = frozen_item(graph_def)
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
