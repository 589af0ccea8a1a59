"""Which operations leave the range of the 16-bit type on the user's own data."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.view import Item
from tf_amp.config.ranges import Ranges
from tf_amp.errors import AmpError, ConfigError, NotMeasurableError, UnfitDataError
from tf_amp.tools.convert.job import Job
from tf_amp.tools.convert.running import signatures_of
from tf_amp.tools.graph_runs.batches import (
    UNREADABLE,
    batches_from_file,
    specs_of,
)
from tf_amp.tools.ranges.ranging import joined, ranges_of

_DEFAULT = "serving_default"


def ranges_of_model(job: Job) -> tuple[Ranges | None, tuple[str, ...]]:
    """Return what the tensors of a SavedModel keep to, in all signatures that fit.

    None without data. With it comes what is to be said of signatures that did not run.

    Raises:
      ConfigError: the model has no signature to feed.
      UnfitDataError: the data fits no signature; the message tells what is expected.
      NotMeasurableError: those that it fits cannot be run alone; the message says why.
    """
    path = job.options.calibration
    if path is None:
        return None, ()
    model, signatures = signatures_of(job.given)
    if not signatures:
        raise ConfigError(
            f"calibration: {job.source} has no signature that could be fed; export it "
            "with one."
        )
    found: list[Ranges] = []
    errors: dict[str, AmpError] = {}
    for name, function in signatures.items():
        try:
            batches = batches_from_file(path, specs_of(function))
            found.append(ranges_of(function, batches))
        except (UnfitDataError, NotMeasurableError) as error:
            errors[name] = error
    if not found:
        raise errors[_nearest(signatures, path)]
    del model
    return joined(found), tuple(
        f"{name} did not run on the data, and what it alone computes may leave the "
        f"type's range: {why}"
        for name, why in errors.items()
    )


def ranges_of_graph(job: Job, graph_def: GraphDef, item: Item) -> Ranges | None:
    """Return what the tensors of a bare graph keep to; None without data."""
    path = job.options.calibration
    if path is None:
        return None
    batches = batches_from_file(path, specs_of(graph_def))
    return ranges_of(graph_def, batches, fetches=item.fetch)


def _nearest(signatures: Mapping[str, Any], path: pathlib.Path) -> str:
    """Name the signature whose inputs the file's arrays name, else the default one."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = set(archive.files)
    except UNREADABLE:
        names = set()
    for name, function in signatures.items():
        if {spec.name for spec in specs_of(function)} == names:
            return name
    return _DEFAULT if _DEFAULT in signatures else next(iter(signatures))
