"""What one seed of the fuzzer checks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass import kept_kernels, plugin
from grappler_pass.annotations import FUSED
from grappler_pass.fusions import RULES
from grappler_pass.graph.type_slots import TypeSlot
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Settings, optimize
from tests.equivalence import Baseline, Results
from tests.programs import Program, run, run_with_grappler
from tests.random_graphs import is_of_keras, random_graph
from tests.rewriters import settings_of
from tests.soundness import assert_sound
from tests.tolerance import Comparison

LEVELS = ("O1", "O2", "O3")
LOW_DTYPES = ("bfloat16", "float16")
# O3 uses no list, so squares and exponentials leave float16's range: there only
# soundness counts, and that the graph runs.
OUT_OF_RANGE = ("float16", "O3")
# A wrong value is as wrong in float16; mere rounding is eight times smaller there.
FINER = 3.0
# Times what is allowed.
SLIGHT = 2.0
# Dilated convolutions have gradients on a CPU by oneDNN alone, in float32, too.
WITHOUT_ONEDNN = "Current CPU implementations do not yet support dilation rates"
# Every so many seeds go through Grappler itself with the plugin loaded.
PLUGIN_EVERY = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a seed.

    Attributes:
      seed: of the program.
      failures: one line each; empty when all is well.
      rewritten: how many of the rewritings changed the graph.
      chaotic: whether results could not be compared, only soundness.
      rules: how often each fusion was applied.
      again: how many operations run again to hold less.
    """

    seed: int
    failures: tuple[str, ...]
    rewritten: int
    chaotic: bool
    rules: Mapping[str, int] = dataclasses.field(default_factory=dict)
    again: int = 0


def check_seed(
    seed: int, low_dtypes: tuple[str, ...] = (), *, saves_memory: bool = False
) -> Outcome:
    """Build, capture, rewrite at every level, run, compare.

    Args:
      seed: of the program and of the arbitrary prices at O1.
      low_dtypes: all to check; one of them, in turn, when empty.
      saves_memory: whether a step may take longer to hold less.
    """
    # Whatever can be done is done.
    settings_for = functools.partial(
        settings_of,
        seed=seed,
        margin=-1e9,
        keeps_weights=kept_kernels.are_at_hand(),
        saves_memory=saves_memory,
        # What is only said takes a tenth of the time.
        predicts_memory=seed % PLUGIN_EVERY == 0,
    )
    program = random_graph(seed, RULES)
    try:
        baseline = Baseline.from_program(program)
    except tf.errors.InvalidArgumentError as error:
        if WITHOUT_ONEDNN not in error.message:
            raise
        return Outcome(seed, (), 0, chaotic=True)
    failures = _check_tracing(program, seed) if is_of_keras(seed) else []
    rewritten, again, chaotic = 0, 0, False
    rules = Counter(_traced_rules(program))
    seen: set[bytes] = set()
    for low_dtype in low_dtypes or (LOW_DTYPES[seed % 2],):
        for level in LEVELS:
            settings = settings_for(low_dtype, level)
            try:
                rewrite = baseline.rewrite(settings)
                text = rewrite.graph_def.SerializeToString(deterministic=True)
                if not rewrite.changed or text in seen:
                    continue
                seen.add(text)
                rewritten += 1
                again += rewrite.plan.recomputed
                rules.update(each.rule for each in rewrite.plan.fusions)
                comparison = baseline.compare(rewrite.graph_def, low_dtype)
                if not comparison.ok:
                    comparison = _unless_rounding(baseline, comparison, settings)
                chaotic = chaotic or comparison.chaotic
                if not comparison.ok and (low_dtype, level) != OUT_OF_RANGE:
                    failures.append(f"{low_dtype} {level}: {comparison}")
            except Exception as error:
                if _is_refused_by_hand(baseline, low_dtype, error):
                    chaotic = True
                    continue
                failures.append(f"{low_dtype} {level}: {_one_line(error)}")
        if seed % PLUGIN_EVERY == 0:
            settings = settings_for(
                low_dtype, LEVELS[seed // PLUGIN_EVERY % len(LEVELS)]
            )
            failures.extend(_check_plugin(baseline, settings))
    return Outcome(seed, tuple(failures), rewritten, chaotic, dict(rules), again)


def _traced_rules(program: Program) -> Iterator[str]:
    """Yield the rule of each kernel that a program was traced with."""
    for node in _nodes_of(program):
        if FUSED in node.attr:
            yield node.attr[FUSED].s.decode()


def _nodes_of(program: Program) -> Iterator[NodeDef]:
    """Return the nodes of a graph and of its functions."""
    graph_def = program.graph_def
    bodies = (function.node_def for function in graph_def.library.function)
    return itertools.chain(graph_def.node, *bodies)


def _check_tracing(program: Program, seed: int) -> list[str]:
    """Compare a program of Keras with itself as Keras alone has it traced.

    Grappler has seen neither: where values cancel, what it reorders is off by more. Not
    compared are steps of Lion, which go by signs: of a gradient next to zero, any
    rounding turns it.
    """
    if any(node.op == "Sign" for node in _nodes_of(program)):
        return []
    plain = Baseline.from_program(random_graph(seed), capture=False)

    def run_after(given: Program) -> Results:
        return run(program.graph_def, dataclasses.replace(program, feeds=given.feeds))

    comparison = plain.judge(run_after, "float32")
    return [] if comparison.ok else [f"as it was traced: {comparison}"]


def _is_refused_by_hand(baseline: Baseline, low_dtype: str, error: Exception) -> bool:
    """Return whether a program's own check of values fails with casts by hand, too."""
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return False
    try:
        baseline.controls_of(low_dtype)
    except tf.errors.InvalidArgumentError as by_hand:
        return by_hand.message.splitlines()[-1] == error.message.splitlines()[-1]
    return False


def _unless_rounding(
    baseline: Baseline, found: Comparison, settings: Settings
) -> Comparison:
    """Return `found`, as chaotic if it shrinks with the epsilon of the 16-bit type.

    A program may amplify rounding more than the controls show. A wrong rewriting is
    wrong by as much in either type, while float16 rounds eight times as finely. What
    float16 lacks a kernel for stays float32 in both, if the result is off even so; else
    only a slight excess is believed. What casts by hand are off by is always allowed.
    """
    found = baseline.allowing_casts_by_hand(found, settings.low_dtype)
    if found.ok:
        return found
    (coarse, fine), plans = _in_both_types(baseline, found, settings)
    if plans[0] != plans[1]:
        names = sorted({slot.node for slot in plans[0] ^ plans[1]})
        exclude = tuple(f"^{re.escape(name)}$" for name in names)
        settings = dataclasses.replace(settings, exclude=exclude)
        (still, finer), others = _in_both_types(baseline, found, settings)
        if not still.ok:
            coarse, fine, plans = still, finer, others
    is_rounding = fine.ok or coarse.error > FINER * fine.error
    comparable = plans[0] == plans[1] or found.error < SLIGHT * found.allowed
    return dataclasses.replace(found, chaotic=is_rounding and comparable)


def _in_both_types(
    baseline: Baseline, found: Comparison, settings: Settings
) -> tuple[list[Comparison], list[set[TypeSlot]]]:
    """Return how far that result is off in either type, and what is in 16 bits."""
    compared, plans = [], []
    for low_dtype in LOW_DTYPES:
        rewrite = baseline.rewrite(dataclasses.replace(settings, low_dtype=low_dtype))
        compared.append(baseline.compare_at(found.where, rewrite.graph_def, low_dtype))
        plans.append({row.slot for row in rewrite.plan.decisions if row.is_low})
    return compared, plans


def _check_plugin(baseline: Baseline, settings: Settings) -> list[str]:
    """Run the program in a Session that optimizes, with the pass in it."""
    low_dtype, level = settings.low_dtype, settings.opt_level

    def run_after(program: Program) -> Results:
        given = dataclasses.replace(program, graph_def=baseline.original)
        return run_in_grappler(given, settings)

    try:
        comparison = baseline.judge(run_after, low_dtype)
    except Exception as error:
        if _is_refused_by_hand(baseline, low_dtype, error):
            return []
        return [f"{low_dtype} {level} in Grappler: {_one_line(error)}"]
    if not comparison.ok:
        comparison = _unless_rounding(baseline, comparison, settings)
    if comparison.ok or (low_dtype, level) == OUT_OF_RANGE:
        return []
    return [f"{low_dtype} {level} in Grappler: {comparison}"]


def run_in_grappler(program: Program, settings: Settings) -> Results:
    """Run in a Session with the plugin; raise what fails in the pass."""
    errors: list[BaseException] = []
    with grappler_plugin(settings, errors):
        results = run_with_grappler(program)
    if errors:
        raise errors[0]
    return results


@contextlib.contextmanager
def grappler_plugin(settings: Settings, errors: list[BaseException]) -> Iterator[None]:
    """Let Grappler call the pass; collect what it raises."""

    def rewrite(data: bytes, grappler_item: plugin.GrapplerItem) -> bytes | None:
        graph_def = GraphDef.FromString(data)
        fetch = tuple(name.partition(":")[0] for name in grappler_item.fetch)
        item = Item(fetch=fetch, preserve=tuple(grappler_item.preserve))

        def rewritten(graph_def: GraphDef) -> GraphDef:
            names = [node.name for node in graph_def.node]
            shapes = functools.partial(grappler_item.shapes, names)
            return optimize(graph_def, item, settings, shapes=shapes).graph_def

        try:
            return assert_sound(graph_def, rewritten, item).SerializeToString()
        except BaseException as error:
            errors.append(error)
            return None

    plugin.load(rewrite)
    try:
        yield
    finally:
        plugin.clear_callback()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
