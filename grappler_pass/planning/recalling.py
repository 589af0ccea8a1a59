"""Take over what was decided for a graph before, in the run that is resumed.

Prices change from run to run, and with them plans: a training that is to go on as if it
had never stopped keeps the plan that it began with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from absl import logging

from grappler_pass.planning.cut_problem import Variables
from grappler_pass.planning.draft import Draft


def recall(draft: Draft) -> Draft:
    """Look the graph up; where prices decide nothing there is nothing to look up."""
    memory = draft.memory
    low = None if memory is None else memory.recall(draft)
    if low is None:
        return draft
    if not _fits(draft, low):
        logging.log_first_n(
            logging.WARNING,
            "The plan stored for graph %r does not fit it; it is planned anew.",
            1,
            draft.name,
        )
        return draft
    return dataclasses.replace(draft, recalled=low)


def keep(draft: Draft) -> Draft:
    """Have it remembered how a graph came out, where its costs decide."""
    if draft.memory is not None:
        draft.memory.keep(draft)
    return draft


def _fits(draft: Draft, low: Sequence[bool]) -> bool:
    """Return whether only eligible slots are low, and tied ones alike."""
    of_slot = Variables.from_constraints(draft.constraints).of_slot
    if len(of_slot) != len(low) or any(low[slot] for slot in draft.written_slots):
        return False
    colors: dict[int, bool] = {}
    return all(
        colors.setdefault(variable, is_low) == is_low if variable >= 0 else not is_low
        for variable, is_low in zip(of_slot, low, strict=True)
    )
