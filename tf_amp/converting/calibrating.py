"""Which operations leave the range of the 16-bit type on the user's own data."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_amp.checking.batches import batches_from_file, specs_of
from tf_amp.checking.ranging import ranges_of
from tf_amp.converting.running import signatures_of
from tf_amp.errors import ConfigError

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph import Item
    from tf_amp.checking.ranges import Ranges
    from tf_amp.converting.job import Job

_DEFAULT = "serving_default"


def ranges_in_model(job: Job) -> Ranges | None:
    """Return what the tensors of a SavedModel keep to; None without calibration data.

    Raises:
      ConfigError: the model has no signature to feed.
      DataUnfit: the data does not fit the inputs; the message tells what is expected.
    """
    path = job.options.calibration
    if path is None:
        return None
    model, signatures = signatures_of(job.given)
    if not signatures:
        raise ConfigError(
            f"calibration: {job.source} has no signature that could be fed; export it "
            "with one."
        )
    function = _fed_signature(signatures, _names_in(path))
    found = ranges_of(function, batches_from_file(path, specs_of(function)))
    del model
    return found


def ranges_in_graph(job: Job, graph_def: GraphDef, item: Item) -> Ranges | None:
    """Return what the tensors of a bare graph keep to; None without data.

    Raises:
      DataUnfit: the data does not fit the inputs; the message tells what is expected.
    """
    from tf_amp.checking.batches import specs_of_graph

    path = job.options.calibration
    if path is None:
        return None
    batches = batches_from_file(path, specs_of_graph(graph_def))
    return ranges_of(graph_def, batches, fetches=item.fetch)


def _fed_signature(signatures: Mapping[str, Any], names: frozenset[str]) -> Any:
    """Return the signature whose inputs have these names, else the default one."""
    for function in signatures.values():
        if {spec.name for spec in specs_of(function)} == names:
            return function
    return signatures.get(_DEFAULT) or next(iter(signatures.values()))


def _names_in(path: Any) -> frozenset[str]:
    """Return the names of the arrays in a file; none where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return frozenset(archive.files)
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile):
        return frozenset()
