"""Why a slot has its dtype: the causes, and what is particular to one slot's.

Fusions have theirs, too.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from grappler_pass.errors import guess


class Cause(enum.Enum):
    """Why something is as it is; the value is the sentence `explain` prints."""

    GAIN = "16 bits are faster here, casts included"
    NEIGHBORS = "in 16 bits because its neighbors are"
    MEMORY = "its results take half the memory in 16 bits"
    FORCED = "this optimization level takes 16 bits without asking for costs"
    RESUMED_LOW = "16 bits, as in the run that is resumed"
    COST = "it could be in 16 bits, but float32 is at least as fast, casts included"
    CASTS = "16 bits are faster here, but not with the casts that they would need"
    WRITTEN = "it passes on a variable's memory, which may be written before it is read"
    ISLAND = (
        "it could be in 16 bits, but no matrix product or convolution next to it is"
    )
    HOST = "the host cannot start operations faster than the GPU runs them in float32"
    MARGIN = "the whole plan gains too little, or less than the error of its costs"
    KERNEL_STATE = (
        "the plan gains too little, or less than the error of its costs, and its steps "
        "cannot be compared: kernels keep state"
    )
    DOUBT = "whether 16 bits are faster is a close call, until steps have been compared"
    TRIAL = "the whole graph ran both ways, and 16 bits were not faster"
    HOLDS_MORE = "in 16 bits the step would hold more memory than in float32"
    RESUMED = "float32, as in the run that is resumed"
    LEVEL = "the optimization level keeps everything in float32"
    NOT_REACHED = (
        "no matrix product or convolution passes 16 bits to it, or takes them from it"
    )
    NOT_LISTED = "the operation is in none of the four lists"
    DENY = "this operation needs float32"
    DENY_TAINT = "its input comes from an operation that needs float32"
    PRESERVED = "the program feeds, fetches or otherwise needs it in this type"
    BARRIER = "after the unscaling of gradients"
    LOSS_SCALE = "computed with the loss scale, before the first matrix product"
    STATE_UPDATE = "part of a variable's update"
    LIST_ESCAPES = "its tensor list is read where the type cannot change"
    RESERVE_ESCAPES = "its kernel shares a reserve space with one in another graph"
    TIED = "its type is tied to one that must stay float32"
    EXCLUDED = "excluded from 16 bits"
    OWN = "arithmetic that tf-amp adds, which needs float32"
    NO_PRODUCT = "arithmetic before any matrix product, which reads the result cast"
    PROMOTED = "it meets a float32 value of its size that no matrix product made"
    STATE = "it adds to a variable's value, or to one that a loop carries"
    FACTOR = "it scales a whole tensor by a number that 16 bits cannot hold"
    CHAIN = "one of many sums in a row"
    REPEATED = "a loop computes with it repeatedly, each time with the same error"
    SUM = "a sum of many values"
    AFTER_PRODUCTS = (
        "after the last matrix product, on the way to a result or a statistic"
    )
    NEAR_NUMBERS = "16 bits would lose the difference of numbers that are close"
    MAGNIFIED = "it magnifies errors of values near 1"
    JUMP = "the smallest error may change its result, so it gets float32's values"
    NO_KERNEL = "TensorFlow has no 16-bit kernel for it on this device"
    IMPRECISE = "its 16-bit kernel is less exact than rounding its result would be"
    SLOW_KERNEL = "oneDNN has only its slow reference kernel in the 16-bit type"
    WRONG_KERNEL = "TensorFlow's 16-bit kernel computes wrong numbers"
    NOT_ADMITTED = "the operation's definition does not allow the 16-bit type"
    CAST = "an existing cast keeps its types"
    EXACT = "its values must stay exact (integers or random draws in float32)"
    RANGE = "it depends on a constant that the 16-bit type cannot hold"
    DECOMPOSITION = "a matrix decomposition next to it would magnify its rounding"
    MEASURED_RANGE = "its tensors were seen to leave the safe range of the 16-bit type"
    NOT_FLOAT32 = "it is not float32 in your graph"
    FIXED = "its type cannot change"
    # Of fusions.
    FUSED = "certainly faster, in float32 as well"
    TRACED = "the program was traced with it"
    FUSION_COST = "it saves nothing, or less than the error of its cost estimate"
    FUSION_OFF = "switched off"


LOW = (Cause.GAIN, Cause.NEIGHBORS, Cause.MEMORY, Cause.FORCED, Cause.RESUMED_LOW)
# Of what might have been in 16 bits.
DECIDED = (
    *LOW,
    Cause.COST,
    Cause.CASTS,
    Cause.WRITTEN,
    Cause.ISLAND,
    Cause.HOST,
    Cause.MARGIN,
    Cause.KERNEL_STATE,
    Cause.DOUBT,
    Cause.TRIAL,
    Cause.HOLDS_MORE,
    Cause.RESUMED,
    Cause.LEVEL,
)


# Of what stays float32: the causes, and what a plan's summary says of their time.
KEPT_FOR = {
    "gains nothing in 16 bits": (
        Cause.COST,
        Cause.CASTS,
        Cause.ISLAND,
        Cause.HOST,
        Cause.MARGIN,
        Cause.KERNEL_STATE,
        Cause.TRIAL,
        Cause.HOLDS_MORE,
        Cause.NOT_REACHED,
    ),
    "waits until steps have been compared": (Cause.DOUBT,),
    "needs its accuracy": (
        Cause.DENY,
        Cause.DENY_TAINT,
        Cause.NO_PRODUCT,
        Cause.PROMOTED,
        Cause.STATE,
        Cause.FACTOR,
        Cause.CHAIN,
        Cause.REPEATED,
        Cause.SUM,
        Cause.AFTER_PRODUCTS,
        Cause.NEAR_NUMBERS,
        Cause.MAGNIFIED,
        Cause.JUMP,
        Cause.EXACT,
        Cause.DECOMPOSITION,
    ),
    "needs its range": (Cause.RANGE, Cause.MEASURED_RANGE),
    "updates variables": (Cause.STATE_UPDATE,),
    "scales losses and gradients": (Cause.BARRIER, Cause.LOSS_SCALE, Cause.OWN),
    "has a type that cannot change": (
        Cause.WRITTEN,
        Cause.PRESERVED,
        Cause.LIST_ESCAPES,
        Cause.RESERVE_ESCAPES,
        Cause.TIED,
        Cause.CAST,
        Cause.NOT_FLOAT32,
        Cause.FIXED,
    ),
    "has no good kernel in 16 bits": (
        Cause.NO_KERNEL,
        Cause.IMPRECISE,
        Cause.SLOW_KERNEL,
        Cause.WRONG_KERNEL,
        Cause.NOT_ADMITTED,
        Cause.NOT_LISTED,
    ),
    "is excluded by you": (Cause.EXCLUDED,),
    "stays float32 at level O0": (Cause.LEVEL,),
    "is as in the run that is resumed": (Cause.RESUMED,),
}


class Reason(NamedTuple):
    """A cause, and what is particular to this slot.

    Attributes:
      cause: the sentence.
      detail: where the costs decided, a sentence on the op's list; else a culprit's
        name, or another clause.
    """

    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        """Show the sentence, then the detail."""
        return self.text()

    def text(self, figure: str = "") -> str:
        """Return the sentence, with a figure at its end, then the detail."""
        sentence = self.cause.value + figure
        if not self.detail:
            return sentence
        return f"{sentence}{'. ' if self.cause in DECIDED else ': '}{self.detail}"


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
    near = guess(name, known, 2) or "."
    raise ValueError(
        f"reason: received {reason!r}{near} Allowed are {', '.join(known)}."
    )
