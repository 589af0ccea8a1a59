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
    "tf-amp's own plan",
    "its rewrites",
)
_LEFT_OUT = (
    "The profile leaves out: the input pipeline, Python and the session on the host, "
    "Horovod, transfers between host and device, the choice of cuDNN's algorithms, "
    "clocks that fall under load, and memory that runs short. The graphs leave out "
    "loops: GNMT's are unrolled, so that weights are cast once and not in every step "
    "as they were. The batch of the last two rows was not published."
)
_LEGEND = (
    "Speed-up of mixed precision (float16) over float32 in items per second on one "
    "V100, predicted with the shipped profile for graphs built here with the published "
    "batch sizes, planned by the lists of TensorFlow 1.15, which the published figures "
    "were obtained with; items/s: predicted (published). *tf-amp's own plan*: the "
    "same prediction for what tf-amp would convert, with its fusions; "
    "*its rewrites*: how many of them it finds. With an asterisk: obtained with "
    "XLA, whose fusion is estimated; without one, cuDNN turns images around for tensor "
    "cores, which is counted. No rate of the profile was fitted to a row: that kernels "
    "beside products reach less bandwidth in float16 is from measurements of another "
    "framework, that a host starts an op per 25 microseconds from an inference that "
    "its host bounds (Transformer-XL's, one sequence). Both sources were looked for "
    "knowing the errors without them."
)
_HOST = (
    "With a dagger: what the host does in the step is added in either precision. It is "
    "not predicted but taken from what was published for eight GPUs, which the same "
    "host keeps waiting, and from the bandwidth of PCIe 3.0."
)


@dataclass(frozen=True)
class Comparison:
    """One model: pairs are float32 and mixed.

    Attributes:
        name: of the model.
        items: per step.
        published: speed-up.
        throughputs: published items per second; may be empty.
        seconds: predicted per step.
        own_seconds: per mixed step as tf-amp would plan it.
        rewrites: beside types, in that plan.
        xla: whether the published figures were obtained with XLA.
        host: seconds of these that the host takes.
        source: of the published figures.
        derived: the constant of the profile that measurements of this model gave;
            empty if none.
    """

    name: str
    items: tuple[int, int]
    published: float
    throughputs: tuple[float, ...]
    seconds: tuple[float, float]
    own_seconds: float
    rewrites: int
    xla: bool
    host: float
    source: str
    derived: str = ""

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
            _rewrites(found),
            *_derived(found),
            *((_HOST,) if any(each.host for each in found) else ()),
            _LEFT_OUT,
            sources,
        )
    )


def _rewrites(found: Sequence[Comparison]) -> str:
    """Say in how many graphs there is something to fuse."""
    some = sum(each.rewrites > 0 for each in found)
    return (
        f"Fusions are found in {some} of {len(found)} graphs: programs "
        "for TensorFlow 1.15 call the kernels of batch normalization and of optimizer "
        "steps, which rewrites put in place of what Keras 3 writes. Those that are "
        "applied while a program is traced are in no column: these graphs call none "
        "of the functions of Keras 3 and TensorFlow that they replace."
    )


def _derived(found: Sequence[Comparison]) -> tuple[str, ...]:
    """Say which rows are no test of the whole profile."""
    names = [f"{each.name} ({each.derived})" for each in found if each.derived]
    text = "With a double dagger: other measurements of the model gave a constant of "
    return (f"{text}the profile. These are {' and '.join(names)}.",) if names else ()


def _mean_errors(found: Sequence[Comparison]) -> str:
    kinds = {
        "run with XLA": [each for each in found if each.xla],
        "run without": [each for each in found if not each.xla],
        "without a dagger": [each for each in found if not each.host],
        "that gave no constant": [each for each in found if not each.derived],
    }
    parts = [f"Mean error: {_mean_error(found)}"]
    parts += [
        f"{_mean_error(some)} over the {len(some)} {words}"
        for words, some in kinds.items()
        if 0 < len(some) < len(found)
    ]
    return "; ".join(parts) + "."


def _mean_error(found: Sequence[Comparison]) -> str:
    return f"{mean(abs(each.error) for each in found):.0%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _cells(each: Comparison) -> tuple[str, ...]:
    pairs = zip(each.items, each.seconds, strict=True)
    predicted = [items / seconds for items, seconds in pairs]
    known = [f" ({_number(value)})" for value in each.throughputs] or ["", ""]
    own = _ratio(each.items, (each.seconds[0], each.own_seconds))
    return (
        each.name + "*" * each.xla + "†" * bool(each.host) + "‡" * bool(each.derived),
        f"{each.published:.2f}",
        f"{each.predicted:.2f}",
        f"{each.error:+.0%}",
        f"{_number(predicted[0])}{known[0]}",
        f"{_number(predicted[1])}{known[1]}",
        f"{own:.2f}",
        str(each.rewrites),
    )
