"""Run a converted model beside the one it was made of."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grappler_pass.graph import Item
    from tf_amp.checking.verification import Verification
    from tf_amp.converting.job import Job


def verifications(
    job: Job, draft: pathlib.Path, low_dtype: str
) -> dict[str, Verification]:
    """Compare each signature of both models, if the job asks for it."""
    return {}


def frozen_verifications(
    job: Job, draft: pathlib.Path, item: Item, low_dtype: str
) -> dict[str, Verification]:
    """Compare both graphs, if the job asks for it."""
    return {}
