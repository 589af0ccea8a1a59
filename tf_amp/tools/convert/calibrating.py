"""Which operations leave the range of the 16-bit type on the user's own data."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_amp.errors import AmpError, ConfigError, NotMeasurableError, UnfitDataError
from tf_amp.tools.convert.running import signatures_of
from tf_amp.tools.graph_runs.batches import batches_from_file, specs_of
from tf_amp.tools.ranges.ranging import joined, ranges_of

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.view import Item
    from tf_amp.config.ranges import Ranges
    from tf_amp.tools.convert.job import Job

_DEFAULT = "serving_default"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What calibration data has shown of a model.

    Attributes:
      ranges: what its tensors keep to; None without data.
      unmeasured: the signatures that did not run on the data, each with the reason.
    """

    ranges: Ranges | None = None
    unmeasured: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def remarks(self) -> tuple[str, ...]:
        """Say what is not known."""
        return tuple(
            f"{name} was not calibrated, and what it alone computes may leave the "
            f"type's range: {why}"
            for name, why in self.unmeasured.items()
        )


def calibration_of_model(job: Job) -> Calibration:
    """Return what the tensors of a SavedModel keep to, in all signatures that fit.

    Raises:
      ConfigError: the model has no signature to feed.
      UnfitDataError: the data fits no signature; the message tells what is expected.
      NotMeasurableError: those that it fits cannot be run alone; the message says why.
    """
    path = job.options.calibration
    if path is None:
        return Calibration()
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
        raise errors[_nearest(signatures, _names_in(path))]
    del model
    return Calibration(joined(found), {n: str(why) for n, why in errors.items()})


def ranges_in_graph(job: Job, graph_def: GraphDef, item: Item) -> Ranges | None:
    """Return what the tensors of a bare graph keep to; None without data.

    Raises:
      UnfitDataError: the data does not fit the inputs; the message says what does.
    """
    from tf_amp.tools.graph_runs.batches import specs_of_graph

    path = job.options.calibration
    if path is None:
        return None
    batches = batches_from_file(path, specs_of_graph(graph_def))
    return ranges_of(graph_def, batches, fetches=item.fetch)


def _nearest(signatures: Mapping[str, Any], names: frozenset[str]) -> str:
    """Name the signature whose inputs have these names, else the default one."""
    for name, function in signatures.items():
        if {spec.name for spec in specs_of(function)} == names:
            return name
    return _DEFAULT if _DEFAULT in signatures else next(iter(signatures))


def _names_in(path: Any) -> frozenset[str]:
    """Return the names of the arrays in a file; none where it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return frozenset(archive.files)
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile):
        return frozenset()
