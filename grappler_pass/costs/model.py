"""Seconds of a call and of a cast on one device, and how far they may be off.

A price is read from a grid of the device's profile, else made by its roofline, both
corrected by what a program's own steps have taught: measured over predicted seconds.

A cell is what ops have in common that their price depends on: the classes of their
work, each size of the first of these to a power of two, and the type. A cell's readings
are logarithms of measured over predicted seconds, one of each profiled call. They are
believed where most of several agree, and correct the prices of the cell from then on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from grappler_pass.costs.calls import DTYPE_BYTES, PRICED_ATTRS, OpCall, Price, Work
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.op_classes import ANY_OP, BATCHED_BIAS
from grappler_pass.costs.op_work import in_batches, works_of
from grappler_pass.fork_safety import cached_attribute

# Two runs of the same whole step read 0.96 to 1.04 of each other; what a median's own
# spread does not show.
RUN_TO_RUN = 0.03

# Profile measured on this very device. Between two profiles of one kind of CPU,
# two thirds of the figures moved by less than 7 %; reading between the points of a grid
# adds as much again.
CALIBRATED = 0.12

# Profile measured on another device of the kind. Between two such machines, one of them
# busy, 2,939 figures moved by 0.27.
KINDRED = 0.3

# Published rates: a kernel reaches anything between half of the peak and all of it.
PUBLISHED = 0.4

# Roofline, for a class that an otherwise measured profile lacks: in bfloat16 TanhGrad
# takes 5.9 times as long as its traffic, Sigmoid 3.8 times; most take once to twice.
ROOFLINE = 0.6

# What is smaller than anything measured, per factor e in size: of the conv classes of
# cpu-avx512-bf16, predicted without their smallest points, these are off by 0.3 at a
# quarter of a size and by 0.6 at a sixteenth.
BELOW_MEASURED = 0.22

# A size that is guessed: a batch taken for 32 is usually between 16 and 64.
GUESSED_SHAPE = 0.7

# The part of a price's variance that float32 and 16 bits have in common, since a
# machine that is slow is slow at both: between the two machines above the ratio
# of bfloat16 to float32 moved by 0.20 where independent errors would make 0.38.
COMMON_VARIANCE = 0.7


def roofline_error(profile: DeviceProfile) -> float:
    """Return the error of a price that is made of rates."""
    return ROOFLINE if profile.data.get("classes") else PUBLISHED


def is_whole(call: OpCall) -> bool:
    """Return whether no size of ``call`` is guessed."""
    specs = (*call.inputs, *call.outputs)
    return all(spec.shape is not None and None not in spec.shape for spec in specs)


def price_from_profile(
    profile: DeviceProfile, works: Iterable[Work], dtype: str
) -> Price:
    """Return the sum of the pieces, whose errors count as one.

    The dtype is as the profile names it: "float32>bfloat16" for casts.
    """
    parts = [_price(profile, work, dtype) for work in works]
    measured = all(part.source == "profile" for part in parts)
    seconds = sum(part.seconds for part in parts)
    weighted = sum(part.seconds * part.error for part in parts)
    return Price(
        seconds,
        "profile" if measured else "roofline",
        weighted / seconds if seconds > 0.0 else 0.0,
    )


def cast_works(elements: int, source: str, target: str) -> tuple[Work, ...]:
    """Return the work of casting that many values."""
    moved = elements * sum(DTYPE_BYTES.get(end, 4) for end in (source, target))
    return (Work("Cast", (float(max(elements, 1)),), 0.0, float(moved)),)


def _price(profile: DeviceProfile, work: Work, dtype: str) -> Price:
    grid = profile.grid(work.op_class, dtype)
    if grid is not None:
        # Whether its own classes were measured, and on this device.
        error = KINDRED if profile.data.get("classes") else PUBLISHED
        if profile.device is not None:
            error = CALIBRATED
        smallness = grid.smallness(work.point)
        if smallness < 1.0:
            error = math.hypot(error, BELOW_MEASURED * math.log(smallness))
        return Price(_on_grid(profile, work, dtype), "profile", error)
    seconds = profile.roofline.seconds(work, dtype)
    if profile.grid(work.op_class, "float32") is not None:
        # Comparable with the measured float32, if only in proportion.
        here = _on_grid(profile, work, "float32")
        seconds = here * seconds / profile.roofline.seconds(work, "float32")
    return Price(seconds, "roofline", roofline_error(profile))


def _on_grid(profile: DeviceProfile, work: Work, dtype: str) -> float:
    grid = profile.extended_grid(work.op_class, dtype)
    assert grid is not None, "the caller has seen one"
    return work.times * work.scale * grid.seconds(work.point)


# Fewer readings are not believed; of more, the latest count.
FEWEST_READINGS, MOST_READINGS = 3, 9
# Readings agree that are no farther from their median.
AGREEMENT = 0.2
# A record of a kernel is off by about a microsecond: shorter ones are no reading.
LEAST_SECONDS = 1e-5
# No kernel is off by more: what says so was not a reading of it.
MOST_LOG_RATIO = math.log(100.0)


class Expected(NamedTuple):
    """What a profile alone predicts of one execution of a node.

    Attributes:
      cell: that its price belongs to.
      seconds: of one execution.
    """

    cell: str
    seconds: float


class Lesson(NamedTuple):
    """Readings of one cell, the latest last.

    Attributes:
      logs: logarithms of measured over predicted seconds.
    """

    logs: tuple[float, ...] = ()

    @property
    def agreeing(self) -> tuple[float, ...]:
        """The readings near their median: a busy machine may disturb some."""
        middle = statistics.median(self.logs) if self.logs else 0.0
        return tuple(log for log in self.logs if abs(log - middle) <= AGREEMENT)

    @property
    def spread(self) -> float:
        """Standard deviation of those that agree; infinite of fewer than two."""
        return statistics.stdev(self.agreeing) if len(self.agreeing) > 1 else math.inf

    @property
    def is_believed(self) -> bool:
        """Whether several readings agree, and fewer do not."""
        count = len(self.agreeing)
        return count >= FEWEST_READINGS and 2 * count > len(self.logs)

    @property
    def is_over(self) -> bool:
        """Whether more readings are not worth taking: it is believed, or has none.

        What was read and has none is too short for the clock.
        """
        return self.is_believed or not self.logs

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds."""
        return math.exp(statistics.median(self.logs))

    @property
    def error(self) -> float:
        """Standard deviation of the logarithm of a price that it corrects."""
        return math.hypot(self.spread, RUN_TO_RUN)

    def with_readings(self, logs: Iterable[float]) -> Lesson:
        """Return a lesson with further readings."""
        return Lesson((*self.logs, *logs)[-MOST_READINGS:])


class Learned:
    """The lessons of one device; what is added counts for prices from then on.

    Attributes:
      version: counts changes.
    """

    def __init__(self, lessons: Mapping[str, Lesson] | None = None) -> None:
        """Begin with the lessons of earlier processes, by cell."""
        self._lessons = dict(lessons or {})
        self.version = 0

    @property
    def lessons(self) -> Mapping[str, Lesson]:
        """The lessons by cell, believed or not."""
        return MappingProxyType(self._lessons)

    def believed(self, cell: str) -> Lesson | None:
        """Return the lesson of a cell; None where there is none to be believed."""
        lesson = self._lessons.get(cell)
        return lesson if lesson is not None and lesson.is_believed else None

    def add(self, readings: Mapping[str, Sequence[float]]) -> None:
        """Add readings by cell."""
        for cell, logs in readings.items():
            known = self._lessons.get(cell, Lesson())
            self._lessons[cell] = known.with_readings(logs)
        self.version += 1


def cell_of(op: str, works: Sequence[Work], dtype: str, profile: str) -> str:
    """Return the cell of a call of an op whose work a named profile prices."""
    classes = "+".join(work.op_class for work in works)
    if classes == ANY_OP:
        classes = op
    sizes = (2 ** round(math.log2(max(size, 1.0))) for size in works[0].point)
    return f"{classes} {'x'.join(map(str, sizes))} {dtype} ({profile})"


def log_ratio(measured: float, expected: float) -> float | None:
    """Return a reading; None where a time is too short, or not to be believed."""
    if measured < LEAST_SECONDS or expected <= 0.0:
        return None
    log = math.log(measured / expected)
    return log if abs(log) <= MOST_LOG_RATIO else None


class CostModel:
    """Price calls on the device of ``profile``; the same call costs one look-up.

    Every price is positive except that of an op that runs no kernel or moves no data
    (constants, variable reads, reshapes), which is 0.0.
    """

    def __init__(self, profile: DeviceProfile, learned: Learned | None = None) -> None:
        """Price by ``profile``, as far as what was ``learned`` does not correct it.

        What is learned later counts from then on.
        """
        self.profile = profile
        self.learned = Learned() if learned is None else learned
        self._version = self.learned.version
        self._prices: dict[tuple[object, ...], Price] = {}

    @cached_attribute
    def of_device(self) -> CostModel:
        """The model of the device alone, however fast its host starts ops."""
        return CostModel(self.profile.of_device(), self.learned)

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds of one execution with floating values held in ``dtype``.

        Args:
            call: op, attributes and shapes; the dtypes of its floating tensors are
                ignored, those of the others count.
            dtype: "float32", "bfloat16" or "float16".
        """
        attrs = call.attrs
        named = tuple((name, attrs[name]) for name in PRICED_ATTRS if name in attrs)
        key = (call.op, dtype, named, call.inputs, call.outputs)
        prices = self._current_prices()
        try:
            known = prices.get(key)
        except TypeError:  # an attribute given as a list
            return self._price(call, dtype)
        if known is None:
            known = prices[key] = self._price(call, dtype)
        return known

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds of a Cast of ``elements`` values; 0.0 between equal dtypes."""
        if source == target:
            return Price(0.0, "profile")
        prices, key = self._current_prices(), (elements, source, target)
        known = prices.get(key)
        if known is None:
            works = cast_works(elements, source, target)
            known = prices[key] = self._corrected("Cast", works, f"{source}>{target}")
        return known

    def runs_in_batches(self, call: OpCall, dtype: str) -> bool:
        """Return whether the kernel of batched products is the faster one of a call.

        Only where that was measured.
        """
        batched = in_batches(call, dtype)
        if not batched or self.profile.grid(BATCHED_BIAS, dtype) is None:
            return False
        works = (batched, works_of(call, dtype))
        prices = (price_from_profile(self.profile, each, dtype) for each in works)
        faster, slower = (price.seconds for price in prices)
        return faster < slower

    def expected(self, call: OpCall, dtype: str) -> Expected | None:
        """Return the seconds that the profile alone predicts.

        None where no kernel runs, or a size is guessed: neither teaches anything.
        """
        works = works_of(call, dtype)
        if not works or not is_whole(call):
            return None
        seconds = price_from_profile(self.profile, works, dtype).seconds
        return Expected(self._cell(call.op, works, dtype), seconds)

    def _price(self, call: OpCall, dtype: str) -> Price:
        if call.op == "Cast" and call.inputs and call.outputs:
            # One of the user's own, which keeps its types.
            source, target = (spec.dtype for spec in (call.inputs[0], call.outputs[0]))
            return self.cast_price(call.outputs[0].elements, source, target)
        is_batched = self.runs_in_batches(call, dtype)
        works = (in_batches if is_batched else works_of)(call, dtype)
        price = self._corrected(call.op, works, dtype)
        if is_whole(call):
            return price
        return price._replace(error=math.hypot(price.error, GUESSED_SHAPE))

    def _corrected(self, op: str, works: Sequence[Work], dtype: str) -> Price:
        """Return the profile's price, corrected by what steps have taught."""
        price = price_from_profile(self.profile, works, dtype)
        if not works or not self.learned.lessons:
            return price
        lesson = self.learned.believed(self._cell(op, works, dtype))
        if lesson is None:
            return price
        return Price(price.seconds * lesson.ratio, "learned", lesson.error)

    def _cell(self, op: str, works: Sequence[Work], dtype: str) -> str:
        profile = self.profile
        when = f" {profile.provenance['date']}" if profile.device is not None else ""
        return cell_of(op, works, dtype, f"{profile.name}{when}")

    def _current_prices(self) -> dict[tuple[object, ...], Price]:
        """Return the prices by what is known now."""
        if self._version != self.learned.version:
            self._version, self._prices = self.learned.version, {}
        return self._prices


def compiled_models(models: Mapping[str, CostModel]) -> dict[str, CostModel]:
    """Return models by device type of what XLA compiles there.

    What steps have taught about TensorFlow's own kernels says nothing of XLA's.
    """
    return {kind: CostModel(model.profile.compiled()) for kind, model in models.items()}
