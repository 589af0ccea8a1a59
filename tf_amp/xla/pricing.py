"""The settings of a scope as they hold under XLA."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grappler_pass.pipeline import Settings


def settings_under_xla(chosen: Settings) -> Settings:
    """Return settings that price a graph as XLA compiles it.

    What was measured of TensorFlow's own kernels says nothing of XLA's, and nothing is
    measured here: prices are those of the profile.
    """
    from grappler_pass.costs import CostModel

    models = {kind: CostModel(model.profile) for kind, model in chosen.models.items()}
    return dataclasses.replace(chosen, models=models, tuner=None)
