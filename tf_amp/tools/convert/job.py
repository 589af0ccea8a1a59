"""One conversion under way, and the report at its end."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from grappler_pass.planning.draft import PRICED
from tf_amp.tools.convert.files import saved_model
from tf_amp.tools.convert.options import FLOAT32, Options
from tf_amp.tools.convert.report import ConversionReport, Storage

if TYPE_CHECKING:
    from tf_amp.tools.convert.mixing import Mixed
    from tf_amp.tools.verify.verification import Verification


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

    def mixed_report(
        self,
        mixed: Mixed,
        device: str,
        low_dtype: str,
        *,
        written: pathlib.Path,
        low_io: tuple[str, ...] = (),
        warnings: tuple[str, ...] = (),
        verifications: Mapping[str, Verification] | None = None,
    ) -> ConversionReport:
        """Return the report of a conversion to mixed precision.

        Args:
          mixed: what came of the graph.
          device: name of the profile.
          low_dtype: the 16-bit type.
          written: where the result is at the moment.
          low_io: inputs and outputs of signatures that are in 16 bits.
          warnings: beside those of `mixed`.
          verifications: by signature.
        """
        return dataclasses.replace(
            self._report(written),
            low_dtype=low_dtype,
            device=device,
            signatures=mixed.signatures,
            plans=mixed.outcome.plans,
            left_alone=mixed.outcome.left_alone,
            storage=mixed.storage,
            low_io=low_io,
            warnings=(*mixed.warnings, *warnings),
            verifications=verifications or {},
        )

    def size_remarks(self, mixed: Mixed) -> tuple[str, ...]:
        """Say that unknown sizes are guessed, where that kept everything float32."""
        is_priced = self.options.config.opt_level == PRICED
        if mixed.outcome.is_changed or self.options.batch or not is_priced:
            return ()
        shapes = (d.shape for p in mixed.outcome.plans.values() for d in p.decisions)
        if not any(shape and shape[0] is None for shape in shapes):
            return ()
        return (
            "sizes of batches are open, so prices are guesses; name one by --batch",
        )

    def float32_report(self, written: pathlib.Path) -> ConversionReport:
        """Return the report of a conversion back to float32."""
        return dataclasses.replace(self._report(written), weights=FLOAT32)

    def _report(self, written: pathlib.Path) -> ConversionReport:
        return ConversionReport(
            source=str(self.source),
            target=str(self.target),
            kind=self.kind,
            to=self.options.to,
            low_dtype="",
            device="",
            opt_level=self.options.config.opt_level,
            weights=self.options.weights,
            signatures={},
            plans={},
            left_alone={},
            storage=Storage(),
            bytes_before=saved_model.size_of(self.given),
            bytes_after=saved_model.size_of(written),
            seconds=time.perf_counter() - self.begin,
        )
