"""From runs to rows: medians, speed-ups with their spread, and errors.

A speed-up is the time of float32 over the time of the variant; its spread is that of
the rounds, each comparing processes that ran next to each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from benchmarks.records import Measurement, Run
from tf_amp.tools.bench.speed_ups import largest_error, speed_up_of
from tf_amp.tools.bench.worker.executed_ops import OpCounts

_BFLOAT16_EPSILON = 2.0**-8
# Losses are means over a batch; outputs carry the rounding of each layer.
TOLERANCES = {"train": 8 * _BFLOAT16_EPSILON, "infer": 32 * _BFLOAT16_EPSILON}
REFERENCE = "float32"
_OURS = "ours"
_PEERS = ("keras", "builtin")


@dataclass(frozen=True)
class Cell:
    """One variant on one model and mode.

    ``speed_up``, ``lowest``, ``highest`` and ``error`` are None without float32 to
    compare with; ``seconds`` is None where no process came to an end.
    """

    variant: str
    seconds: float | None
    speed_up: float | None
    lowest: float | None
    highest: float | None
    error: float | None
    ops: OpCounts | None
    peak_bytes: int
    failure: str
    warning: str

    @property
    def is_low(self) -> bool:
        """Return whether the executed graph holds a 16-bit operation."""
        return self.ops is not None and self.ops.low > 0


@dataclass(frozen=True)
class Row:
    """All variants on one model and mode."""

    model: str
    mode: str
    cells: tuple[Cell, ...]

    def cell(self, variant: str) -> Cell | None:
        """Return the cell of a variant, or None."""
        return next((each for each in self.cells if each.variant == variant), None)

    @property
    def against_best(self) -> float | None:
        """Time of tf-amp over that of the fastest other variant, the A/A run aside."""
        return self._against((REFERENCE, *_PEERS))

    @property
    def against_peers(self) -> float | None:
        """Time of tf-amp over that of the faster peer, float32 not being one."""
        return self._against(_PEERS)

    def _against(self, names: Sequence[str]) -> float | None:
        ours = self.cell(_OURS)
        others = [
            each.seconds
            for name in names
            if (each := self.cell(name)) is not None and each.seconds is not None
        ]
        if ours is None or ours.seconds is None or not others:
            return None
        return ours.seconds / min(others)

    def is_wrong(self, cell: Cell) -> bool:
        """Return whether a variant computed something other than float32."""
        if cell.error is None:
            return False
        return not cell.error <= TOLERANCES[self.mode]


def rows_from_runs(runs: Sequence[Run]) -> tuple[Row, ...]:
    """Return a row per model and mode, in the order of the runs."""
    models = dict.fromkeys(run.model for run in runs)
    modes = dict.fromkeys(each.mode for run in runs for each in run.measurements)
    order = sorted(modes, reverse=True) or ["-"]
    return tuple(
        _row([run for run in runs if run.model == model], mode)
        for model in models
        for mode in order
    )


def mean_over_peers(rows: Sequence[Row]) -> float:
    """Return how many times as fast as the better peer tf-amp is, geometric mean."""
    ratios = (1 / row.against_peers for row in rows if row.against_peers)
    return geometric_mean(ratios)


def _row(runs: Sequence[Run], mode: str) -> Row:
    variants = dict.fromkeys(run.variant for run in runs)
    reference = _measured(runs, REFERENCE, mode)
    cells = (_cell(runs, name, mode, reference) for name in variants)
    return Row(model=runs[0].model, mode=mode, cells=tuple(cells))


def _cell(
    runs: Sequence[Run], name: str, mode: str, reference: dict[int, Measurement]
) -> Cell:
    measured = _measured(runs, name, mode)
    seconds = {number: each.seconds for number, each in measured.items()}
    base = {number: each.seconds for number, each in reference.items()}
    speed_up = speed_up_of(seconds, base)
    mine = [run for run in runs if run.variant == name]
    return Cell(
        variant=name,
        seconds=median(seconds.values()) if seconds else None,
        speed_up=speed_up.median if speed_up else None,
        lowest=speed_up.lowest if speed_up else None,
        highest=speed_up.highest if speed_up else None,
        error=largest_error(_values(measured), _values(reference)),
        ops=next((each.ops for each in measured.values()), None),
        peak_bytes=max((run.peak_bytes for run in mine), default=0),
        failure=next((run.failure for run in mine if run.failure), ""),
        warning=next((run.warning for run in mine if run.warning), ""),
    )


def _measured(runs: Sequence[Run], name: str, mode: str) -> dict[int, Measurement]:
    """Return the measurements of a variant by round."""
    return {
        run.round: each
        for run in runs
        for each in run.measurements
        if run.variant == name and each.mode == mode
    }


def _values(measured: dict[int, Measurement]) -> dict[int, tuple[float, ...]]:
    return {number: each.values for number, each in measured.items()}
