"""Graphs as text with the color and cause of each node: `cases/*.txt`, one test each.

  == A sum with a float32 value of its size is float32
  between: act
  sum = AddV2(allow1, x)     # F promoted: x
  act = Relu(sum)            # L

A node's comment is its color: L (may be in 16 bits), F, or one for each type attribute
("T=L U=F"); then, if it matters, the name of its cause and after a colon the detail.

Before the nodes stand settings: `on` names a graph of `tests.small_graphs` that comes
first, or text of the same file (`:= NAME`); `between: NODE` has the nodes between two
products of which the second reads NODE, `behind: NODE` behind the last product;
`fetch`, `feed`, `dtype` (bfloat16), `level` (O1), `exclude`, `lists` (edits of the op
lists: `+clear:Log -infer:Log`). `also` says more of what
was not commented, divided by semicolons; `tied` and `untied` name nodes of which each
agrees with the first, or does not; `alone` a fused node of which only the product may
be in 16 bits; `ties: 0` says that nothing is tied. `each: A B = 1 : x | 2 : y` makes a
case of each alternative, in which 1 or 2 stands for A. `@GPU` is a device of a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from grappler_pass.graph.op_lists import OpLists
from tests import small_graphs
from tests.coloring import Colored, color
from tests.printed_programs import alternatives, texts_of

FOLDER = Path(__file__).parent / "cases"
_SETTING = re.compile(r"([a-z]+): ?(.*)")
_NODE = re.compile(r"(\S+) = .*?(?:#\s*(.*))?$")
_EXPECTED = re.compile(r"(?P<colors>\S+)(?: (?P<cause>\w+))?(?:: ?(?P<detail>.*))?")
BETWEEN = "bias = Placeholder\nallow2 = MatMul(x, w)\n"


class Case(NamedTuple):
    """One case with its settings, a graph, and what is expected of nodes by name."""

    settings: dict[str, str]
    graph: str
    expected: dict[str, str]


def parsed(text: str, graphs: dict[str, str]) -> Case:
    settings: dict[str, str] = {}
    lines: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        setting = None if lines else _SETTING.fullmatch(line)
        if setting:
            settings[setting[1]] = setting[2]
        else:
            lines.append(line)
    nodes = [match for line in lines if (match := _NODE.match(line))]
    expected = {match[1]: match[2] for match in nodes if match[2]}
    for each in filter(None, settings.get("also", "").split(";")):
        name, _, rest = each.strip().partition(" ")
        expected[name] = rest
    graph = on_others(settings.get("on"), graphs) + "\n".join(lines)
    if last := settings.get("between"):
        graph += f"\nafter = MatMul({last}, w)\nfetch = Identity(after)"
    if last := settings.get("behind"):
        graph += f"\nfetch = Identity({last})"
    if "between" in settings or "behind" in settings:
        graph = f"{small_graphs.CHAIN}\n{BETWEEN}\n{graph}"
    return Case(settings, graph, expected)


def on_others(name: str | None, graphs: dict[str, str]) -> str:
    """Return the text of a graph by its name, after that of the one that it is on."""
    if name is None:
        return ""
    text = graphs.get(name) or getattr(small_graphs, name)
    first = re.match(r"\s*on: (\w+)\n", text)
    own = text[first.end() :] if first else text
    own = own.replace("@GPU", "@/device:ABSENT_GPU:0")
    return f"{on_others(first[1] if first else None, graphs)}\n{own}\n"


def graph_called(file: str, name: str) -> str:
    """Return a graph that cases of a file are on."""
    parts = texts_of(FOLDER / f"{file}.txt")
    return on_others(name, {title: text for mark, title, text in parts if mark == ":="})


def cases() -> Iterator[object]:
    for path in sorted(FOLDER.glob("*.txt")):
        graphs: dict[str, str] = {}
        for mark, title, text in texts_of(path):
            if mark == ":=":
                graphs[title] = text
                continue
            for which, filled in alternatives(text):
                yield pytest.param(parsed(filled, graphs), id=f"{title}{which}")


@pytest.mark.parametrize("case", list(cases()))
def test_a_graph_is_colored_as_its_case_says(case: Case) -> None:
    settings = case.settings
    fetched = ["fetch"] if re.search(r"^fetch = ", case.graph, re.MULTILINE) else []
    low_dtype = settings.get("dtype", "bfloat16")
    edits: dict[str, dict[str, list[str]]] = {"+": {}, "-": {}}
    for word in settings.get("lists", "").split():
        name, _, op = word[1:].partition(":")
        edits[word[0]].setdefault(name, []).append(op)
    lists = OpLists.for_dtype(low_dtype).edited(add=edits["+"], remove=edits["-"])
    colored = color(
        case.graph.replace("@GPU", "@/device:ABSENT_GPU:0"),
        fetch=settings.get("fetch", " ".join(fetched)),
        feed=settings.get("feed", ""),
        low_dtype=low_dtype,
        lists=lists,
        opt_level=settings.get("level", "O1"),
        exclude=tuple(settings.get("exclude", "").split()),
    )
    found = {name: _said(colored, name, text) for name, text in case.expected.items()}
    assert found == case.expected
    for name in settings.get("alone", "").split():
        assert colored.slots.has_float32_results(colored.view.index[name])
    if "ties" in settings:
        assert len(colored.constraints.ties) == int(settings["ties"])
    for key, agrees in (("tied", True), ("untied", False)):
        first, *others = settings.get(key, "").split() or [""]
        assert all(colored.tied(first, other) is agrees for other in others)


def _said(colored: Colored, name: str, expected: str) -> str:
    """Return what is so of a node, as far as something is expected."""
    match = _EXPECTED.fullmatch(expected)
    assert match, f"{name}: {expected!r} is no color with cause and detail"
    text = colored.colors(name)
    if "=" in match["colors"]:
        attrs = [one.partition("=")[0] for one in match["colors"].split(",")]
        text = ",".join(f"{a}={colored.colors(f'{name}.{a}')}" for a in attrs)
    if match["cause"]:
        text += f" {colored.cause(name).name.lower()}"
    if match["detail"] is not None:
        text += f": {colored.detail(name)}"
    return text
