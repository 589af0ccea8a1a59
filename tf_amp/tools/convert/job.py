"""One conversion under way, and the report at its end."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

from tf_amp.tools.convert.files.stored_models import size_of
from tf_amp.tools.convert.options import Options
from tf_amp.tools.convert.report import ConversionReport


@dataclasses.dataclass(frozen=True)
class Job:
    """What is converted, to what, and how.

    Attributes:
      source: as the user named it.
      given: what is read: the source, or what a Keras file was exported to.
      target: as the user named it.
      kind: of the source, for people.
      options: what the user wants.
      begin: of the work, in seconds of `time.perf_counter`.
    """

    source: pathlib.Path
    given: pathlib.Path
    target: pathlib.Path
    kind: str
    options: Options
    begin: float

    def report(self, written: pathlib.Path, **found: Any) -> ConversionReport:
        """Return the report of what is `written`, with fields that were `found`."""
        return ConversionReport(
            source=str(self.source),
            target=str(self.target),
            kind=self.kind,
            to=self.options.to,
            opt_level=self.options.config.opt_level,
            weights=self.options.weights,
            bytes_before=size_of(self.given),
            bytes_after=size_of(written),
            seconds=time.perf_counter() - self.begin,
            **found,
        )
