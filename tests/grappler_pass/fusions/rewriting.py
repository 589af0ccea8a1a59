"""Graphs as text, fused on a CPU without 16-bit units."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import tf_amp
from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.fusions import KEPT_WEIGHTS, RULES
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.shapes import Shape
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite, Settings, optimize
from grappler_pass.planning.plan import Plan
from tests.text_graph import graph_from_text

PROFILE = CostModel(DeviceProfile.load("cpu-generic"))
# Where blocks of weights pay, and 16 bits do not.
ON_AMX = {
    "models": {"CPU": CostModel(DeviceProfile.load("cpu-amx-bf16"))},
    "low_dtype": "float16",
}


def fused(
    text: str, shapes: Mapping[str, Shape | None], item: Item, **given: object
) -> Rewrite:
    """Rewrite a graph; some shapes may be others than those of the rest.

    Raises:
      ValueError: the pass would ask for no shapes, and fuse nothing for that reason.
    """
    sizes = {**shapes, **{name: given.pop(name) for name in shapes.keys() & given}}
    low_dtype = str(given.pop("low_dtype", "bfloat16"))
    lists, graph_def = OpLists.for_dtype(low_dtype), graph_from_text(text)
    if all(lists.list_of(node.op) != ALLOW for node in graph_def.node):
        raise ValueError(f"a graph without a product, so no shape is known:\n{text}")
    settings = Settings(
        low_dtype=low_dtype,
        lists=lists,
        models={"CPU": PROFILE},
        fusions=RULES,
        home=Home("CPU"),
    )
    return optimize(
        graph_def,
        item,
        dataclasses.replace(settings, **given),
        shapes=lambda: {name: (shape,) for name, shape in sizes.items()},
    )


class Case(NamedTuple):
    """A section of `cases.txt`: a rule, a graph that it applies to, and variants.

    Attributes:
      rule: its name.
      text: the graph.
      shapes: by name of node.
      fetch: what is fetched.
      changed: the lines that are others afterwards.
      variants: as they are written.
    """

    rule: str
    text: str
    shapes: Mapping[str, Shape | None]
    fetch: tuple[str, ...]
    changed: tuple[str, ...]
    variants: tuple[str, ...]

    def __call__(self, text: str = "", item: Item | None = None, **given: object):
        """Rewrite the graph or another; some shapes may be others, and settings."""
        given = {"keeps_weights": self.rule == KEPT_WEIGHTS, **given}
        given = {**(ON_AMX if self.rule == "weight_blocks" else {}), **given}
        return fused(text or self.text, self.shapes, item or Item(self.fetch), **given)


def shape_from_text(text: str) -> Shape | None:
    if text == "unknown":
        return None
    sizes = filter(None, text.strip("[]").split(","))
    return tuple(None if size == "?" else int(size) for size in sizes)


def _case_from_text(section: str) -> Case:
    head, _, rest = section.partition("-->")
    changed, _, variants = rest.partition("\n--\n")
    lines = head.splitlines()
    shapes = dict[str, Shape | None]()
    for line in lines[2:]:
        sizes, *names = line.split()
        if line.startswith("["):
            shapes |= dict.fromkeys(names, shape_from_text(sizes))
    return Case(
        lines[0].split()[0],
        "\n".join(line.strip() for line in lines if line.startswith("  ")),
        shapes,
        tuple(lines[1].split()[1:]),
        tuple(line.strip() for line in changed.strip().splitlines()),
        tuple(variants.strip().splitlines()),
    )


_TEXT = pathlib.Path(__file__).with_name("cases.txt").read_text(encoding="utf-8")
CASES = {
    section.partition("\n")[0]: _case_from_text(section)
    for section in _TEXT.split("\n== ")[1:]
}


def plans_without_loss(
    compute: Callable[[], Iterable[np.ndarray]], tolerance: float, **settings: object
) -> Sequence[Plan]:
    """Return the plans of a computation; all that it returns must be as without them.

    Args:
      compute: what is computed.
      tolerance: by how much each array may be off, in terms of its largest value.
      settings: of tf-amp, on a CPU without 16-bit units.
    """
    wanted = compute()
    tf_amp.enable(**{"device_profile": "cpu-generic", "tune": "off", **settings})
    try:
        found = compute()
        plans = tf_amp.plans()
    finally:
        tf_amp.disable()
    for before, after in zip(wanted, found, strict=True):
        largest = np.abs(before).max(initial=0.0) if tolerance else 0.0
        np.testing.assert_allclose(after, before, rtol=0, atol=tolerance * largest)
    return plans
