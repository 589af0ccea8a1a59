"""Rules of fusions apply to the graphs of `cases.txt`, but not to most variants."""

from __future__ import annotations

import re

import pytest

from grappler_pass.fusions import KEPT_WEIGHTS, RULE_TABLE, RULES
from grappler_pass.graph.view import Item
from tests.grappler_pass.fusions.rewriting import CASES, Case, fused, shape_from_text
from tests.processes import ROOT
from tests.text_graph import graph_from_text, text_from_graph

VARIANTS = [(title, line) for title, case in CASES.items() for line in case.variants]


def test_each_rule_has_its_row_in_the_documentation_and_its_section_here() -> None:
    page = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("\n## Rewrites beside types\n")
    section, _, _ = rest.partition("\n## ")
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.M)) == RULES
    found = {name for name, rule in RULE_TABLE.items() if rule.matches}
    assert {case.rule for case in CASES.values()} == {*found, KEPT_WEIGHTS}


def test_a_graph_whose_shapes_nobody_asks_for_is_no_case() -> None:
    with pytest.raises(ValueError, match="without a product"):
        fused("x = Placeholder\nact = Tanh(x)", {"x": (8,)}, Item(("act",)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule_changes_what_its_lines_say(case: Case) -> None:
    rewrite = case()
    before = text_from_graph(graph_from_text(case.text)).splitlines()
    after = text_from_graph(rewrite.graph_def).splitlines()
    assert tuple(line for line in after if line not in before) == case.changed
    (fusion,) = rewrite.plan.fusions
    assert fusion.rule == case.rule
    assert fusion.seconds > 0.0
    assert f"fused: {case.rule} 1" in rewrite.plan.summary()


@pytest.mark.parametrize(("title", "variant"), VARIANTS)
def test_a_variant_is_fused_or_stays(title: str, variant: str) -> None:
    rules = CASES[title]
    text, fetch, excluded, given = rules.text, rules.fetch, (), {}
    expected, _, clauses = variant.partition(": ")
    for verb, _, rest in (clause.partition(" ") for clause in clauses.split(" ;; ")):
        match verb:
            case "add":
                text += "\n" + rest.replace("\\n", "\n")
            case "put":
                old, new = rest.replace("\\n", "\n").split(" => ")
                assert old in text
                text = text.replace(old, new)
            case "fetch":
                fetch = (*fetch, rest)
            case "exclude":
                excluded = ((rest, rest),)
            case "with":
                key, _, value = rest.partition("=")
                given[key] = _value(key, value, rules)
    rewrite = rules(text, Item(fetch, excluded=excluded), **given)
    is_fused = expected != "stays"
    assert [each.rule for each in rewrite.plan.fusions] == [rules.rule] * is_fused
    assert rewrite.changed == is_fused
    before = {node.name: node for node in graph_from_text(text).node}
    after = {node.name: node for node in rewrite.graph_def.node}
    for name in expected.split()[1:]:
        old, new = before[name], after[name]
        assert (new.op, new.input) == (old.op, old.input)


def _value(key: str, value: str, case: Case) -> object:
    if key in case.shapes:
        return shape_from_text(value)
    if key == "fusions":
        return tuple(filter(None, value.split(",")))
    return value == "True" if value in ("True", "False") else value
