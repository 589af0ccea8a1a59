"""The figures of the pass and of the import as Markdown."""

import math
from dataclasses import dataclass
from statistics import median

from benchmarks.report import markdown_table

_TITLES = (
    "nodes",
    "serialized MB",
    "TensorFlow's own s",
    "pass s",
    "of CPU s",
    "growth / n log n",
    "peak above TensorFlow's MB",
    "times the graph",
    "16-bit nodes",
)


@dataclass(frozen=True)
class GraphSize:
    """Time and memory of optimizing a graph, without and with the pass.

    ``tensorflow_seconds`` is the time of TensorFlow's own passes; ``stages`` are
    the seconds of each stage of the pass in the first round.
    """

    nodes: int
    graph_bytes: int
    low_nodes: int
    tensorflow_seconds: float
    pass_seconds: float
    pass_cpu_seconds: float
    peak_bytes_without: float
    peak_bytes_with: float
    stages: tuple[tuple[str, float], ...]

    @property
    def pass_bytes(self) -> float:
        """Peak memory that the pass adds."""
        return self.peak_bytes_with - self.peak_bytes_without


@dataclass(frozen=True)
class PassFigures:
    """Everything that ``pass_time`` measures.

    ``import_seconds`` are without and with the switch; empty if nothing starts by
    itself, as in a source checkout that is not installed.
    """

    sizes: tuple[GraphSize, ...]
    import_seconds: tuple[tuple[float, ...], tuple[float, ...]]

    def markdown(self) -> str:
        """Return the tables."""
        cells = [_line(each, self.sizes[0]) for each in self.sizes]
        table = markdown_table(_TITLES, cells)
        return "\n\n".join((table, self._stage_sentence(), self._import_sentence()))

    def _stage_sentence(self) -> str:
        first = self.sizes[0]
        stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in first.stages)
        return f"Stages at {first.nodes:,} nodes: {stages}."

    def _import_sentence(self) -> str:
        without, with_switch = self.import_seconds
        if not with_switch:
            return "`import tensorflow` is not measured: tf-amp is not installed here."
        return (
            f"`import tensorflow` takes {_spread(without)} without the switch and "
            f"{_spread(with_switch)} with it, a difference of the medians of "
            f"{median(with_switch) - median(without):+.2f} s."
        )


def _line(size: GraphSize, first: GraphSize) -> tuple[str, ...]:
    growth = size.pass_seconds / first.pass_seconds
    allowed = _n_log_n(size.nodes) / _n_log_n(first.nodes)
    return (
        f"{size.nodes:,}",
        f"{size.graph_bytes / 1e6:.1f}",
        f"{size.tensorflow_seconds:.2f}",
        f"{size.pass_seconds:.2f}",
        f"{size.pass_cpu_seconds:.2f}",
        f"{growth / allowed:.2f}",
        f"{size.pass_bytes / 1e6:.0f}",
        f"{size.pass_bytes / size.graph_bytes:.1f}",
        f"{size.low_nodes:,}",
    )


def _n_log_n(number: int) -> float:
    return number * math.log(number)


def _spread(seconds: tuple[float, ...]) -> str:
    return f"{median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"
