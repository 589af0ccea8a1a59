"""How fast the first steps are, while they are compared: benchmarks.first_steps.

Fresh processes train each model by turns: in float32, and with tf-amp in bfloat16 and
an empty cache. Models that were measured before on this machine stay in the table, so
that it may be made in several calls: ``--models resnet50,bert``. With ``--compile
on,clusters`` the steps of tf-amp are compared instead with those that XLA may compile
meanwhile; that table is printed, and not kept.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.announcing import announcing
from benchmarks.catalog import MODELS, entry, subset_of
from benchmarks.machine import this_machine
from benchmarks.processes import worker_environment, worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import RAW, publish

# So many steps in a row are to be no slower than that.
WINDOW, LEAST_SPEED = 20, 0.95
_STEPS = 200

_NAME = "first_steps"
_TITLES = (
    "model",
    "float32 ms",
    "steps",
    "slowest 20 in float32",
    "slowest 20",
    "last 20",
    "optimizing s",
)
# Of steps that may be compiled, as many tens are shown.
_TEN, _TENS = 10, 5
_COMPILED = (
    "Training with TF_AMP_COMPILE over training without, by time: the first step, the "
    "median of each ten of the next ones, and of the last ten. Steps in which "
    "TensorFlow optimizes an instance of the graph for the first time are left out "
    "but for the first; *optimizing s* is what they take beyond others. Medians of "
    "the rounds, in brackets the lowest and the highest."
)
_EXPLANATION = (
    f"Training. *float32 ms*: median of a step. *slowest {WINDOW}*: the speed of the "
    f"slowest {WINDOW} steps in a row among the first ones, of float32's median 1, so "
    "that what float32's own process has is noise. *last*: the same of the last ones. "
    "Steps in which TensorFlow optimizes an instance of the graph for the first time "
    "are left out; *optimizing s* is what they take beyond a step in float32. Medians "
    "of the rounds, in brackets the lowest and the highest."
)


@dataclass(frozen=True)
class Training:
    """The first steps of a process.

    Attributes:
      seconds: of each step.
      optimized: numbers of those during which an instance was optimized.
    """

    seconds: tuple[float, ...]
    optimized: tuple[int, ...]

    @property
    def others(self) -> tuple[float, ...]:
        """Seconds of the other steps."""
        each = enumerate(self.seconds)
        return tuple(took for number, took in each if number not in self.optimized)

    def optimizing(self, step: float) -> float:
        """Return the seconds that optimizing takes beside steps of so many seconds."""
        return sum(self.seconds[number] - step for number in self.optimized)


@dataclass(frozen=True)
class Round:
    """Two processes that took turns."""

    float32: Training
    ours: Training

    @property
    def step(self) -> float:
        """Seconds of a step in float32."""
        return median(self.float32.others)

    def slowest(self, training: Training) -> float:
        """Return the speed of the slowest steps in a row, as a share of float32's."""
        return min(self._speeds(training))

    @property
    def last(self) -> float:
        """The speed of tf-amp's last steps, as a share of float32's."""
        return self._speeds(self.ours)[-1]

    def _speeds(self, training: Training) -> list[float]:
        seconds = training.others
        length = min(WINDOW, len(seconds))
        begins = range(len(seconds) - length + 1)
        sums = (sum(seconds[begin : begin + length]) for begin in begins)
        return [length * self.step / each for each in sums]


# By model.
Figures = Mapping[str, Sequence[Round]]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on the first steps."""
    options = _parser().parse_args()
    if options.compile:
        print(_compiled(options))
        return
    figures = dict(_kept())
    with announcing(len(options.models) * options.rounds * 2) as announce:
        for model in options.models:
            rounds = []
            for _ in range(options.rounds):
                announce(f"{model}, float32")
                float32 = _trained(model, options)
                announce(f"{model}, tf-amp")
                rounds.append(Round(float32, _trained(model, options, "--ours")))
            figures[model] = rounds
    ordered = {each.name: figures[each.name] for each in MODELS if each.name in figures}
    samples = {name: list(map(asdict, rounds)) for name, rounds in ordered.items()}
    publish(_NAME, markdown(ordered), samples, rounds=options.rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{_NAME}", description=__doc__
    )
    names = [model.name for model in MODELS]
    parser.add_argument("--models", type=lambda text: text.split(","), default=names)
    parser.add_argument(
        "--compile",
        type=subset_of(("on", "clusters")),
        default=(),
        help="values of TF_AMP_COMPILE, with , between",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=_STEPS)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of a process' steps, at most"
    )
    return parser


def _compiled(options: argparse.Namespace) -> str:
    """Return a table of steps that may be compiled, beside those that may not."""
    rows, modes = [], ("off", *options.compile)
    with announcing(len(options.models) * options.rounds * len(modes)) as announce:
        for model in options.models:
            runs: dict[str, list[Training]] = {mode: [] for mode in modes}
            for _ in range(options.rounds):
                for mode in modes:
                    announce(f"{model}, {mode}")
                    trained = _trained(model, options, "--ours", "--compile", mode)
                    runs[mode].append(trained)
            rows += [
                compiled_cells(model, mode, runs["off"], runs[mode])
                for mode in options.compile
            ]
            print(*rows[-len(options.compile) :], sep="\n", flush=True)
    tens = [f"{_TEN * i + 1}-{_TEN * (i + 1)}" for i in range(_TENS)]
    titles = ("model", "mode", "steps", "first", *tens, "last", "optimizing s")
    return f"{markdown_table(titles, rows)}\n\n{_COMPILED}"


def compiled_cells(
    model: str, mode: str, without: Sequence[Training], compiled: Sequence[Training]
) -> tuple[str, ...]:
    """Return a row of the table of steps that may be compiled."""

    def medians(training: Training) -> list[float]:
        tens = [training.others[_TEN * i :][:_TEN] for i in range(_TENS)]
        return [training.seconds[0], *map(median, [*tens, training.others[-_TEN:]])]

    def optimizing(training: Training) -> float:
        return training.optimizing(median(training.others))

    ratios = [
        [b / a for a, b in zip(medians(off), medians(on), strict=True)]
        for off, on in zip(without, compiled, strict=True)
    ]
    return (
        entry(model).title,
        mode,
        f"{median(len(each.seconds) for each in compiled):.0f}",
        *(_spread(list(column)) for column in zip(*ratios, strict=True)),
        f"{median(map(optimizing, compiled)):.1f}",
    )


def _trained(model: str, options: argparse.Namespace, *ours: str) -> Training:
    """Return the first steps of a fresh process that knows no verdicts."""
    limits = ("--steps", str(options.steps), "--seconds", str(options.seconds))
    with tempfile.TemporaryDirectory() as cache:
        environment = worker_environment() | {"TF_AMP_CACHE": cache}
        *_, line = worker_lines(
            "first_steps_worker", model, *limits, *ours, environment=environment
        )
    return training_from(json.loads(line))


def training_from(fields: Mapping[str, Iterable[float]]) -> Training:
    """Return what a worker printed, or what was kept of it."""
    return Training(tuple(fields["seconds"]), tuple(map(int, fields["optimized"])))


def _kept(folder: Path = RAW) -> Figures:
    """Return what was measured before on a machine like this one."""
    path = folder / f"{_NAME}.json"
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    here = json.loads(json.dumps(asdict(this_machine())))
    if kept["context"]["machine"] != here:
        return {}
    return {
        model: [Round(*map(training_from, each.values())) for each in rounds]
        for model, rounds in kept["samples"].items()
    }


def markdown(figures: Figures) -> str:
    """Return the table, what its columns mean, and how many models are fast enough."""
    rows = [_cells(model, rounds) for model, rounds in figures.items()]
    middles = [median(r.slowest(r.ours) for r in rounds) for rounds in figures.values()]
    count = sum(middle >= LEAST_SPEED for middle in middles)
    conclusion = (
        f"- {count} of {len(middles)} models have at least {LEAST_SPEED} of float32's "
        f"speed in any {WINDOW} of these steps in a row."
    )
    return "\n\n".join((markdown_table(_TITLES, rows), _EXPLANATION, conclusion))


def _cells(model: str, rounds: Sequence[Round]) -> tuple[str, ...]:
    return (
        entry(model).title,
        f"{1e3 * median(each.step for each in rounds):.3g}",
        f"{median(len(each.ours.seconds) for each in rounds):.0f}",
        _spread([each.slowest(each.float32) for each in rounds]),
        _spread([each.slowest(each.ours) for each in rounds]),
        _spread([each.last for each in rounds]),
        f"{median(each.ours.optimizing(each.step) for each in rounds):.1f}",
    )


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
