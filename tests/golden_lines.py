"""Plans in a line each: of a program, for a profile, in a type, at a level.

A plan is one of a graph that is the same everywhere (`golden_programs.arriving`), at
the prices of a shipped profile.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

import grappler_pass
import keras_callbacks
import tf_amp
from benchmarks.capture_graphs import CapturedGraph
from benchmarks.casts import casts_in
from grappler_pass.costs import DeviceProfile
from grappler_pass.pipeline import draft_graph, optimize
from grappler_pass.planning.draft import Draft, Settings
from grappler_pass.planning.plan import Plan
from grappler_pass.planning.prices import started_ops
from grappler_pass.rewriting.apply import apply
from tests.golden_programs.arriving import Arriving, arriving
from tests.golden_programs.catalog import BY_NAME, PROGRAMS
from tf_amp.config.amp_config import DEFAULT_LEVEL, LEVELS, LOW_DTYPES, AmpConfig
from tf_amp.config.devices import profile_dtype
from tf_amp.tools.target_device import Target

# At O0 every graph stays unchanged.
REWRITING_LEVELS = tuple(LEVELS)[1:]
# Digits of a digest in base 16.
_DIGITS = 10


class Key(NamedTuple):
    """What a line is about; its first words."""

    program: str
    profile: str
    dtype: str
    level: str

    def __str__(self) -> str:
        """Show as the line begins."""
        return " ".join(self)


def plan_keys() -> Iterator[Key]:
    """Yield what there are plans of."""
    for program in BY_NAME:
        for profile in DeviceProfile.names():
            for dtype in LOW_DTYPES:
                for level in REWRITING_LEVELS:
                    yield Key(program, profile, dtype, level)


def own_key(program: str, profile: str) -> Key:
    """Return what is about a profile's own type at the default level."""
    dtype = profile_dtype(profile_named(profile))
    return Key(program, profile, dtype, DEFAULT_LEVEL)


def count_keys() -> Iterator[Key]:
    """Yield what is counted: every other program at the default level."""
    for program in PROGRAMS[::2]:
        for profile in DeviceProfile.names():
            yield own_key(program.name, profile)


@functools.cache
def profile_named(name: str) -> DeviceProfile:
    """Return a shipped profile, of a GPU with a host that is never the bound.

    Small programs would stay float32 otherwise.
    """
    return DeviceProfile.load(name).of_device()


def graph_of(key: Key) -> Arriving:
    """Return the graph of a program as it is on the device of a profile."""
    return arriving(key.program, profile_named(key.profile).kind)


@functools.cache
def settings_of(key: Key) -> Settings:
    """Return what the pass is given."""
    target = Target(profile_named(key.profile), key.dtype)
    is_compiled = BY_NAME[key.program].compiled
    return target.settings(AmpConfig(opt_level=key.level), is_compiled=is_compiled)


def draft_of(key: Key) -> Draft:
    """Plan a program."""
    graph = graph_of(key)
    return draft_graph(
        graph.graph_def,
        graph.item,
        settings_of(key),
        shapes=lambda: graph.shapes,
        name=key.program,
    )


def plan_line(key: Key) -> str:
    """Return how many type attributes are in 16 bits, why others are not, and more."""
    plan = draft_of(key).plan
    low = sum(row.is_low for row in plan.decisions)
    kept = Counter(row.reason.cause for row in plan.decisions if not row.is_low)
    causes = sorted(f"{cause.name.lower()} {count}" for cause, count in kept.items())
    return (
        f"{low} low, {plan.casts} casts, {plan.casts_removed} removed, "
        f"{len(plan.fusions)} fused, {_milliseconds(plan)}; "
        f"{', '.join(causes)}; {_digest(plan)}"
    )


def _digest(plan: Plan) -> str:
    """Return a digest of the types and causes of all type attributes, and fusions."""
    rows = [f"{d.slot} {d.dtype} {d.reason.cause.name}" for d in plan.decisions]
    rows += [f"{f.rule} {f.node} {f.reason.cause.name}" for f in plan.all_fusions]
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()[:_DIGITS]


def _milliseconds(plan: Plan) -> str:
    seconds = plan.seconds_before, plan.seconds_after
    before, after = (float(f"{1e3 * each:.3g}") for each in seconds)
    return f"{before:g} -> {after:g} ms"


def counts_line(key: Key) -> str:
    """Return what a step starts, casts, moves and holds, as far as it is predicted."""
    draft = apply(draft_of(key))
    rewritten = draft.rewritten
    given = CapturedGraph(b"", draft.item.fetch, draft.item.preserve, draft.shapes)
    casts, plan = casts_in(rewritten, given), draft.plan
    return (
        f"{started_ops(draft.view_of(rewritten)):.0f} ops, {casts.runs:.0f} casts, "
        f"{casts.megabytes:.4g} MB cast, {plan.peak_bytes_after / 2**20:.4g} MiB live, "
        f"{_milliseconds(plan)}"
    )


_PACKAGES = (grappler_pass, keras_callbacks, tf_amp)
_FOLDERS = tuple(f"{pathlib.Path(p.__file__).parent}/" for p in _PACKAGES)
# Graphs of 30, 370 and 1,100 nodes.
_PROGRAMS = ("session", "bert", "masked_gru")
_PROFILE = "cpu-amx-bf16"
_TOLERANCE = 0.1


def call_keys() -> Iterator[Key]:
    """Yield what calls are counted of."""
    for program in _PROGRAMS:
        yield own_key(program, _PROFILE)


def calls_line(key: Key) -> str:
    """Return how many functions the pass calls that has met the graph before."""
    graph = graph_of(key)
    settings = dataclasses.replace(settings_of(key), predicts_memory=False)

    def rewrite() -> None:
        optimize(graph.graph_def, graph.item, settings, shapes=lambda: graph.shapes)

    # What is kept for later graphs is computed.
    rewrite()
    return f"{calls_in(rewrite)} calls"


def calls_agree(old: str, new: str) -> bool:
    """Return whether two lines are about the same number of calls."""
    before, after = (int(line.partition(" ")[0]) for line in (old, new))
    return abs(after - before) <= _TOLERANCE * before


def calls_in(work: Callable[[], object]) -> int:
    """Count the calls of our named functions in this thread."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        code = frame.f_code
        is_ours = event == "call" and code.co_filename.startswith(_FOLDERS)
        calls += is_ours and not code.co_name.startswith("<")

    earlier = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(earlier)
    return calls
