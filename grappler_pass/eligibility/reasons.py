"""Why a slot has its dtype: the causes, and what is particular to one slot's.

Rewrites beside types have theirs, too.
"""

from __future__ import annotations

import difflib
import enum
from typing import NamedTuple


class Cause(enum.Enum):
    """Why something is as it is; the value is the sentence `explain` prints."""

    GAIN = "16 bits are faster here, casts included"
    NEIGHBORS = "in 16 bits because its neighbors are"
    MEMORY = "16 bits are about as fast, and its results take half the memory"
    FORCED = "eligible, and the optimization level does not ask what it costs"
    RESUMED_LOW = "16 bits, as in the run that is resumed"
    COST = "eligible, but float32 is at least as fast, casts included"
    CASTS = "faster in 16 bits, but not with the casts that it would need"
    WRITTEN = "hands on a variable's memory, which may be written before it is read"
    ISLAND = "eligible, but no matrix product or convolution beside it is in 16 bits"
    MARGIN = "the whole plan gains too little, or less than its prices may be off"
    KERNEL_STATE = (
        "the plan gains too little, or less than its prices may be off, for one whose "
        "steps cannot be compared: "
        "kernels keep state"
    )
    DOUBT = "whether 16 bits are faster is in doubt until steps have been compared"
    TRIAL = "the whole graph was run both ways, and 16 bits were not faster"
    RESUMED = "float32, as in the run that is resumed"
    LEVEL = "the optimization level keeps everything in float32"
    NOT_REACHED = "no allow op reaches it through clear and infer ops"
    NOT_LISTED = "the op is in none of the four lists"
    DENY = "the op is denied in 16 bits"
    DENY_TAINT = "an infer op fed by a denied op"
    PRESERVED = "fetched, fed or preserved: its dtype belongs to the caller"
    BARRIER = "behind the unscaling of gradients"
    LOSS_SCALE = "computed with the loss scale, before the first product"
    STATE_UPDATE = "part of a variable's update"
    LIST_ESCAPES = "its tensor list is read where the dtype cannot change"
    RESERVE_ESCAPES = "its kernel shares a reserve space with one in another graph"
    TIED = "tied to a type attribute that must stay float32"
    EXCLUDED = "excluded by the user"
    OWN = "arithmetic of tf-amp's own, which takes float32"
    NO_PRODUCT = "arithmetic on what no product made; products read it cast"
    PROMOTED = "meets a float32 value of its own size that no product made"
    STATE = "adds to a variable's value, or to one that a loop carries"
    FACTOR = "scales a whole tensor by a number that 16 bits do not hold"
    CHAIN = "one of many sums in a row"
    REPEATED = "a loop computes with it again and again, each time with the same error"
    SUM = "a sum of many values"
    AFTER_PRODUCTS = "behind the last product, on the way to a result or a statistic"
    NEAR_NUMBERS = "16 bits would lose the difference of near numbers"
    MAGNIFIED = "magnifies errors of what is near 1"
    JUMP = "its outcome jumps: it sees the values that float32 has"
    NO_KERNEL = "no 16-bit kernel on its device"
    IMPRECISE = "its 16-bit kernel is off by more than rounding its result would be"
    SLOW_KERNEL = "oneDNN has only its slow reference kernel in the 16-bit type"
    WRONG_KERNEL = "TensorFlow's 16-bit kernel computes wrong numbers"
    NOT_ADMITTED = "the op's definition does not admit the 16-bit type"
    CAST = "an existing cast keeps its types"
    EXACT = "its values must stay exact (integers or random draws in float32)"
    RANGE = "it depends on a constant that the 16-bit type cannot hold"
    DECOMPOSITION = "a matrix decomposition beside it magnifies how it is rounded"
    MEASURED_RANGE = "its tensors were seen to leave the safe range of the 16-bit type"
    NOT_FLOAT32 = "not float32 in the graph as given"
    FIXED = "its type cannot change"
    # Of rewrites beside types.
    FUSED = "surely faster, in float32 as well"
    TRACED = "the program was traced with it"
    FUSION_COST = "saves nothing that is larger than the error of its cost estimate"
    FUSION_OFF = "switched off"


LOW = (Cause.GAIN, Cause.NEIGHBORS, Cause.MEMORY, Cause.FORCED, Cause.RESUMED_LOW)
# Of what might have been in 16 bits.
DECIDED = (
    *LOW,
    Cause.COST,
    Cause.CASTS,
    Cause.WRITTEN,
    Cause.ISLAND,
    Cause.MARGIN,
    Cause.KERNEL_STATE,
    Cause.DOUBT,
    Cause.TRIAL,
    Cause.RESUMED,
    Cause.LEVEL,
)


class Reason(NamedTuple):
    """A cause, and what is particular to this slot (a list's row, a culprit's name)."""

    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        """Show the sentence, then the detail."""
        return f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value


def cause_of(reason: Cause | str) -> Cause:
    """Return a cause by its name in any case; a cause is returned as it is.

    Raises:
      ValueError: there is none of that name; the message says which there are.
    """
    if isinstance(reason, Cause):
        return reason
    known = {cause.name.lower(): cause for cause in Cause}
    name = str(reason).lower()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=2)
    guess = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise ValueError(
        f"reason: received {reason!r}{guess}; allowed are {', '.join(known)}"
    )
