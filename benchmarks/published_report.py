"""The table of predicted and published speed-ups."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.report import markdown_table

_TITLES = (
    "model",
    "published",
    "predicted",
    "error",
    "float32 items/s",
    "mixed items/s",
    "without fusion",
)
_LEFT_OUT = (
    "The profile leaves out: the input pipeline, Python and the session on the host, "
    "Horovod, transfers between host and device, the choice of cuDNN's algorithms, "
    "clocks that fall under load, and memory that runs short. GNMT and Transformer-XL "
    "were published at about 0.1 s per step more than predicted in either precision, "
    "which the host's share explains and the profile does not know."
)
_LEGEND = (
    "Speed-up of mixed precision (float16) over float32 in items per second on one "
    "V100, predicted with the shipped profile for graphs built here with the published "
    "batch sizes; items/s: predicted (published). *without fusion*: the prediction for "
    "the graph as TensorFlow runs it, where the published figure was obtained with "
    "XLA (an asterisk marks these rows) and the prediction allows for its fusion. No "
    "rate of the profile was fitted to a row; that a host starts an op per 10 "
    "microseconds is a round figure, chosen knowing the published step times."
)


@dataclass(frozen=True)
class Comparison:
    """One model: pairs are float32 and mixed.

    Attributes:
        name: of the model.
        nodes: of its optimized graph.
        items: per step.
        published: speed-up.
        throughputs: published items per second; may be empty.
        seconds: predicted per step.
        unfused_seconds: the same without XLA.
        xla: whether the published figures were obtained with XLA.
        source: of the published figures.
    """

    name: str
    nodes: int
    items: tuple[int, int]
    published: float
    throughputs: tuple[float, ...]
    seconds: tuple[float, float]
    unfused_seconds: tuple[float, float]
    xla: bool
    source: str

    @property
    def predicted(self) -> float:
        """The predicted speed-up."""
        return _ratio(self.items, self.seconds)

    @property
    def error(self) -> float:
        """How far it is off, as a share of the published one."""
        return self.predicted / self.published - 1.0


def _ratio(items: Sequence[int], seconds: Sequence[float]) -> float:
    return (seconds[0] / items[0]) / (seconds[1] / items[1])


def markdown(found: Sequence[Comparison]) -> str:
    """Return the table, its legend, and the mean error."""
    rows = [_cells(each) for each in found]
    sources = "\n".join(f"- {each.name}: {each.source}." for each in found)
    return "\n\n".join(
        (
            markdown_table(_TITLES, rows),
            _mean_errors(found),
            _LEGEND,
            _LEFT_OUT,
            sources,
        )
    )


def _mean_errors(found: Sequence[Comparison]) -> str:
    everything = f"Mean error: {mean(abs(each.error) for each in found):.0%}"
    fused = [abs(each.error) for each in found if each.xla]
    if len(fused) in (0, len(found)):
        return f"{everything}."
    return f"{everything}; {mean(fused):.0%} over the {len(fused)} run with XLA."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _cells(each: Comparison) -> tuple[str, ...]:
    pairs = zip(each.items, each.seconds, strict=True)
    predicted = [items / seconds for items, seconds in pairs]
    known = [f" ({_number(value)})" for value in each.throughputs] or ["", ""]
    unfused = _ratio(each.items, each.unfused_seconds)
    return (
        each.name + ("*" if each.xla else ""),
        f"{each.published:.2f}",
        f"{each.predicted:.2f}",
        f"{each.error:+.0%}",
        f"{_number(predicted[0])}{known[0]}",
        f"{_number(predicted[1])}{known[1]}",
        f"{unfused:.2f}" if each.xla else "-",
    )
