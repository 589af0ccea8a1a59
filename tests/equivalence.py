"""Run a program before and after the pass, and say how far apart the results are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.pipeline import Rewrite, Settings
from tests.hand_casts import by_hand
from tests.programs import (
    Program,
    captured_as_by_grappler,
    is_floating,
    pruned,
    run,
    with_state,
)
from tests.rewriters import rewritten_by, settings_of
from tests.soundness import assert_sound
from tests.tolerance import (
    CHAOTIC,
    CONTROL_MULTIPLE,
    Comparison,
    compare,
    control_results,
    depth_of,
    noise_of,
)

Results = list[np.ndarray]
RunAfter = Callable[[Program], Results]


@dataclasses.dataclass
class Baseline:
    """A program with its float32 results, made once for several settings.

    Attributes:
      captured: what is rewritten.
      original: the graph with all that initializes and reads its variables.
      results: in float32.
      flat: the program whose values the controls round: without functions, in whose
        bodies nothing would be.
      controls: results of these, by dtype.
    """

    captured: Program
    original: GraphDef
    results: Results
    flat: Program
    controls: dict[str, list[Results]]

    @classmethod
    def from_program(cls, program: Program, *, capture: bool = True) -> Baseline:
        """Capture as Grappler would, or only prune, and run in float32."""
        captured = captured_as_by_grappler(program) if capture else pruned(program)
        original = program.graph_def
        results = run(with_state(captured.graph_def, program, original), program)
        has_functions = bool(captured.graph_def.library.function)
        flat = captured_as_by_grappler(program) if has_functions else captured
        return cls(captured, original, results, flat, {})

    def controls_of(self, low_dtype: str) -> list[Results]:
        """Return the results of the rounded float32 graphs; run once per dtype."""
        if low_dtype not in self.controls:
            self.controls[low_dtype] = control_results(
                self.flat, self.original, low_dtype
            )
        return self.controls[low_dtype]

    def rewrite(self, settings: Settings) -> Rewrite:
        """Run the pass and every check of soundness."""
        item = self.captured.item
        rewrites: list[Rewrite] = []

        def rewrite(graph_def: GraphDef) -> GraphDef:
            rewrites.append(rewritten_by(graph_def, item, settings))
            return rewrites[-1].graph_def

        assert_sound(self.captured.graph_def, rewrite, item)
        return rewrites[0]

    def compare(self, rewritten: GraphDef, low_dtype: str) -> Comparison:
        """Run a rewritten graph, whose names are the captured ones, and compare."""

        def run_rewritten(program: Program) -> Results:
            return run(with_state(rewritten, program, self.original), program)

        return self.judge(run_rewritten, low_dtype)

    def allowing_casts_by_hand(self, found: Comparison, low_dtype: str) -> Comparison:
        """Return `found`, allowing what casts by hand of all products are off by."""
        program = dataclasses.replace(self.captured, graph_def=self.original)
        plain = captured_as_by_grappler(program, fused=False).graph_def
        shapes = shapes_from_graph_def(plain)
        graphs = (by_hand(plain, low_dtype, shapes, results=r) for r in (False, True))
        hands = [
            run(with_state(graph, program, self.original), program) for graph in graphs
        ]
        where = found.where
        noise = noise_of(self.results[where], [each[where] for each in hands])
        allowed = max(found.allowed, CONTROL_MULTIPLE * noise)
        return dataclasses.replace(found, allowed=allowed, chaotic=noise >= CHAOTIC)

    def compare_at(self, where: int, rewritten: GraphDef, low_dtype: str) -> Comparison:
        """Run a rewritten graph and compare one result, by its number."""
        after = run(with_state(rewritten, self.captured, self.original), self.captured)
        return compare(
            [after[where]],
            [self.results[where]],
            [[each[where]] for each in self.controls_of(low_dtype)],
            low_dtype=low_dtype,
            depth=depth_of(self.captured.graph_def),
        )

    def judge(self, run_after: RunAfter, low_dtype: str) -> Comparison:
        """Compare what `run_after` returns; where it differs, with other feeds too.

        The slope of a clip or a maximum jumps, and rounding may carry one value across;
        a wrong rewriting is wrong for every feed.
        """
        found = self._compare(run_after(self.captured), low_dtype)
        for factor in (0.9, 1.1):
            if found.ok:
                break
            other = self._with_feeds_scaled(factor)
            again = other._compare(run_after(other.captured), low_dtype)
            found = again if again.ok else found
        return found

    def _compare(self, after: Results, low_dtype: str) -> Comparison:
        return compare(
            after,
            self.results,
            self.controls_of(low_dtype),
            low_dtype=low_dtype,
            depth=depth_of(self.captured.graph_def),
        )

    def _with_feeds_scaled(self, factor: float) -> Baseline:
        feeds = {
            name: (value * factor).astype(value.dtype) if is_floating(value) else value
            for name, value in self.captured.feeds.items()
        }
        scaled = dataclasses.replace(self.captured, feeds=feeds)
        flat = dataclasses.replace(self.flat, feeds=feeds)
        graph_def = with_state(scaled.graph_def, scaled, self.original)
        return Baseline(scaled, self.original, run(graph_def, scaled), flat, {})


def run_before_after(
    program: Program, settings: Settings, *, capture: bool = True
) -> tuple[Rewrite, Comparison]:
    """Capture, rewrite, check soundness, run both and compare."""
    baseline = Baseline.from_program(program, capture=capture)
    rewrite = baseline.rewrite(settings)
    return rewrite, baseline.compare(rewrite.graph_def, settings.low_dtype)


def assert_equivalent(
    program: Program, low_dtype: str, level: str = "O2", *, capture: bool = False
) -> Rewrite:
    """Check soundness and results; return the rewriting for further assertions.

    Args:
      program: must be well-conditioned enough to be compared.
      low_dtype: "bfloat16" or "float16".
      level: of optimization.
      capture: let Grappler optimize first; names of nodes may then be lost.
    """
    settings = settings_of(low_dtype, level)
    rewrite, comparison = run_before_after(program, settings, capture=capture)
    assert comparison.ok, str(comparison)
    assert not comparison.chaotic, f"the program is ill-conditioned: {comparison}"
    return rewrite
