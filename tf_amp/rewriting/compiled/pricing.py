"""The settings of a scope as they hold under XLA."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tf_amp.config.peers import peers

if TYPE_CHECKING:
    from grappler_pass.costs import DeviceProfile
    from grappler_pass.pipeline import Settings
    from grappler_pass.planning.draft import Outcome, OwnSteps, Trial

# Behind the names of profiles.
UNDER_XLA = " under XLA"


def settings_under_xla(chosen: Settings) -> Settings:
    """Return settings that price a graph as XLA compiles it.

    What steps have taught about TensorFlow's own kernels says nothing of XLA's: prices
    are those of the profile. Nor does an elementwise op in 16 bits save memory there,
    for which it would be worth being slower.
    """
    from grappler_pass.costs import CostModel

    home = chosen.home and chosen.home._replace(is_compiled=True)
    models = {
        kind: CostModel(_profile_under_xla(model.profile))
        for kind, model in chosen.models.items()
    }
    return dataclasses.replace(
        chosen, models=models, home=home, own_steps=None, tie=0.0, fuses=True
    )


def settings_with_steps(chosen: Settings) -> Settings:
    """Return settings under XLA that let steps decide where prices are in doubt."""
    own_steps = None if chosen.own_steps is None else StepsAlone(chosen.own_steps)
    return dataclasses.replace(settings_under_xla(chosen), own_steps=own_steps)


class StepsAlone(NamedTuple):
    """Steps of one process alone: compiled workers do not compare theirs together.

    Attributes:
      own_steps: whose verdicts are asked for.
    """

    own_steps: OwnSteps

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Tell which of two graphs is faster; of workers each goes by its prices."""
        from grappler_pass.planning.draft import Outcome

        return Outcome.UNKNOWN if peers() else self.own_steps.outcome(trial, decided)


def _profile_under_xla(profile: DeviceProfile) -> DeviceProfile:
    """Return a profile by whose rates compiled code runs.

    What the host takes to start one op after another does not count: a program is
    started as a whole.
    """
    roofline = dataclasses.replace(profile.roofline, dispatch_seconds=0.0)
    name = f"{profile.name}{UNDER_XLA}"
    return dataclasses.replace(profile, name=name, roofline=roofline)
