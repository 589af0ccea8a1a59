"""What the yardstick checks of one recipe: plans against casting by hand."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.fusions import RULES
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.pipeline import Settings, optimize
from tests.hand_casts import by_hand, with_exact_sums
from tests.placing import GPUS, KIND
from tests.programs import captured_as_by_grappler, plain_session_config, with_state
from tests.recipe_parts import LOOPS
from tests.recipes import Dish, Recipe, build
from tests.rewriters import ArbitraryPrices, LargePrices
from tests.rule import Finding, judge

Results = list[np.ndarray]


class Samples:
    """The results of graphs that stand for one program."""

    def __init__(self, dish: Dish) -> None:
        """Take the program whose values are drawn."""
        self._dish = dish
        self._known: dict[tuple[bytes, range, bool], list[Results]] = {}

    def results(
        self, graph_def: GraphDef, samples: range, *, again: bool = False
    ) -> list[Results]:
        """Return for each sample the fetches of every step, then the state.

        Args:
          graph_def: names of fetches and variables are the program's.
          samples: numbers of the samples.
          again: whether of a second run.
        """
        key = (graph_def.SerializeToString(deterministic=True), samples, again)
        if key not in self._known:
            program = self._dish.program
            whole = with_state(graph_def, program, program.graph_def)
            for node in whole.node:
                # Half the time of an import; where TensorFlow puts it, it was captured.
                node.ClearField("device")
            self._known[key] = list(self._run(whole, samples))
        return self._known[key]

    def _run(self, graph_def: GraphDef, samples: range) -> Iterator[Results]:
        program = self._dish.program
        config = plain_session_config()
        config.intra_op_parallelism_threads = 1
        config.inter_op_parallelism_threads = 1
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
        wanted = [list(program.fetches), list(program.targets)]
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            for sample in map(self._dish.sample, samples):
                session.run(list(program.init), dict(sample.initial))
                results: Results = []
                for _ in range(program.steps):
                    results += session.run(wanted, dict(sample.feeds))[0]
                yield results + session.run(list(program.state))

    def roles(self) -> Sequence[str]:
        """Return what the results are, in their order."""
        program = self._dish.program
        steps = range(1, program.steps + 1)
        fetched = [f"{name} in step {i}" for i in steps for name in program.fetches]
        return [*fetched, *(f"{name} at the end" for name in self._dish.variables)]


# An excess counts if it is still there with more and other samples: errors of few
# samples, and values that jump, scatter widely.
STAGES = (range(3), range(3, 15), range(15, 54))
# What is so many times what it may be after all but the last of them needs no more.
_CLEAR = 5.0


@dataclasses.dataclass(frozen=True)
class PlanKind:
    """How a plan is made: level, 16-bit type, whose prices, and for how much memory."""

    level: str
    low_dtype: str
    prices: str = "arbitrary"
    saves_memory: bool = False

    def __str__(self) -> str:
        """Name it in a line."""
        return f"{self.level} {self.low_dtype} {self.prices}"

    def settings(self, seed: int) -> Settings:
        """Return it as settings; `seed` is that of arbitrary prices."""
        return Settings(
            low_dtype=self.low_dtype,
            lists=OpLists.for_dtype(self.low_dtype),
            models=dict.fromkeys(("CPU", KIND), _prices(self.prices, seed)),
            opt_level=self.level,
            margin=-1e9,
            fusions=RULES,
            home=Home("CPU"),
            saves_memory=self.saves_memory,
        )


_PRICED = {
    "bfloat16": ("cpu-avx512-bf16", "a100", "arbitrary"),
    "float16": ("v100", "a100", "arbitrary"),
}
PLANS = (
    *(PlanKind("O1", dtype, by) for dtype, prices in _PRICED.items() for by in prices),
    *(PlanKind("O2", dtype) for dtype in _PRICED),
)


# In which plans take turns: four times of ten it is O2.
_TURNS = (*PLANS, *PLANS[-2:])


def plan_of(recipe: Recipe) -> PlanKind:
    """Return the plan whose turn it is: of many programs each is rewritten in one."""
    return _TURNS[recipe.prices % len(_TURNS)]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a recipe.

    Attributes:
      failures: of each plan that breaks the rule the worst result.
      rewritten: how many different rewritings were run.
      results: how many results of them were looked at.
      undecided: of how many nothing can be said, since by hand they are not finite.
    """

    failures: Mapping[PlanKind, Finding]
    rewritten: int
    results: int
    undecided: int

    @property
    def counts(self) -> dict[str, int]:
        """All but the failures, by name."""
        return {n: c for n, c in vars(self).items() if n != "failures"}


def check(recipe: Recipe, plans: Iterable[PlanKind]) -> Outcome:
    """Build a program, rewrite it by each plan, and hold it against the rule."""
    return contest_of(recipe).outcome(plans, recipe.prices)


def contest_of(recipe: Recipe) -> Contest:
    """Return the contest of a recipe's program."""
    loops = [part.count for part in recipe.layers if part.kind in LOOPS]
    return Contest(build(recipe), max(loops, default=1))


class Contest:
    """A program in float32 and by hand, for rewritings to be held against.

    Attributes:
      captured: as it is rewritten.
    """

    def __init__(self, dish: Dish, iterations: int = 1) -> None:
        """Capture a program once as it is rewritten and once with no fusion.

        Args:
          dish: the program.
          iterations: how often its longest loop runs.
        """
        self.captured = captured_as_by_grappler(dish.program)
        self._plain = captured_as_by_grappler(dish.program, fused=False)
        self._samples = Samples(dish)
        # How many sums may lie behind one another: nodes, as often as they run.
        self._depth = len(self._plain.graph_def.node) * iterations

    def outcome(self, plans: Iterable[PlanKind], seed: int = 0) -> Outcome:
        """Rewrite the program by each plan, and hold it against the rule.

        Args:
          plans: of which those that come to one graph are run once.
          seed: of arbitrary prices.
        """
        failures: dict[PlanKind, Finding] = {}
        seen: set[bytes] = set()
        results = undecided = 0
        for plan in plans:
            rewritten = self.rewritten(plan.settings(seed))
            text = rewritten.SerializeToString(deterministic=True)
            if text in seen or rewritten is self.captured.graph_def:
                continue
            seen.add(text)
            findings = self.judge(rewritten, plan.low_dtype)
            results += len(findings)
            undecided += findings.count(None)
            broken = [f for f in findings if f is not None and not f.ok]
            if broken:
                failures[plan] = max(broken, key=lambda f: f.excess)
        return Outcome(failures, len(seen), results, undecided)

    @functools.cached_property
    def shapes(self) -> Shapes:
        """Of the captured program."""
        return shapes_from_graph_def(self.captured.graph_def)

    @functools.cached_property
    def _plain_shapes(self) -> Shapes:
        return shapes_from_graph_def(self._plain.graph_def)

    def rewritten(self, settings: Settings) -> GraphDef:
        """Return the graph as the pass rewrites it; itself where it does not."""
        return optimize(
            self.captured.graph_def,
            self.captured.item,
            settings,
            shapes=lambda: self.shapes,
        ).graph_def

    def by_hand(self, low_dtype: str, *, results: bool) -> GraphDef:
        """Return the program that is cast by hand."""
        return by_hand(
            self._plain.graph_def, low_dtype, self._plain_shapes, results=results
        )

    def judge(self, graph_def: GraphDef, low_dtype: str) -> list[Finding | None]:
        """Judge each result; those that pass at any stage hold."""
        low = with_exact_sums(graph_def)
        open_ = list(range(len(self._samples.roles())))
        findings: list[Finding | None] = [None] * len(open_)
        for stage in STAGES:
            found = self._judge(low, low_dtype, stage)
            for i in open_:
                findings[i] = found[i]
            open_ = [i for i in open_ if (f := found[i]) is not None and not f.ok]
            worst = max((findings[i].excess for i in open_), default=0.0)
            if not open_ or (stage is STAGES[-2] and worst > _CLEAR):
                break
        return findings

    def _judge(
        self, graph_def: GraphDef, low_dtype: str, stage: range
    ) -> list[Finding | None]:
        def run(each: GraphDef, *, again: bool = False) -> list:
            results = self._samples.results(each, stage, again=again)
            return list(zip(*results, strict=True))

        pair = run(graph_def), run(self.captured.graph_def)
        # On one thread of a CPU two runs are equal.
        again = run(self.captured.graph_def, again=True) if GPUS else None
        plain = run(self._plain.graph_def)
        hands: list[tuple[list, list]] = []
        findings: list[Finding | None] = []
        # Most hold against operands alone, and then need no more runs.
        for results in (False, True):
            hands.append((run(self.by_hand(low_dtype, results=results)), plain))
            findings = [
                judge(
                    role,
                    (pair[0][i], pair[1][i]),
                    [(low[i], high[i]) for low, high in hands],
                    self._depth,
                    again[i] if again else None,
                )
                for i, role in enumerate(self._samples.roles())
            ]
            if all(found is None or found.ok for found in findings):
                break
        return findings


@functools.cache
def _prices(name: str, seed: int) -> LargePrices | ArbitraryPrices:
    if name == "arbitrary":
        return ArbitraryPrices(seed)
    return LargePrices(CostModel(DeviceProfile.load(name)))
