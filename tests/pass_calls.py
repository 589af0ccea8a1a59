"""The work of the pass on a graph, in calls of our Python functions.

They are the same on every machine, however busy it is. Comprehensions, which some
versions of Python inline, and what has no name are left out.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import grappler_pass
import keras_callbacks
import tf_amp
from grappler_pass.pipeline import optimize
from tests.golden_lines import Key, graph_of, own_key, settings_of

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


def agree(old: str, new: str) -> bool:
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
