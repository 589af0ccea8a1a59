"""Rules of fusions apply to the graphs of `cases.txt`, but not to most variants."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.fusions import KEPT_WEIGHTS, RULE_TABLE, RULES, SHARED_SCALARS
from grappler_pass.fusions.matching import is_float32
from grappler_pass.graph.view import Graph, Item
from grappler_pass.planning.plan import Fusion, Plan
from tests.grappler_pass.fusions.rewriting import CASES, Case, fused, shape_from_text
from tests.processes import ROOT
from tests.text_graph import graph_from_text, text_from_graph


def done_in(plan: Plan) -> tuple[Fusion, ...]:
    """Return what is fused in a graph, whether or not a plan may withdraw it."""
    return (*plan.fusions, *plan.traced_fusions)


VARIANTS = [(title, line) for title, case in CASES.items() for line in case.variants]


def test_each_rule_has_its_row_in_the_documentation_and_its_section_here() -> None:
    page = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("\n## Fusions\n")
    section, _, _ = rest.partition("\n## ")
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.M)) == RULES
    found = {name for name, rule in RULE_TABLE.items() if rule.matches}
    found |= {SHARED_SCALARS, KEPT_WEIGHTS}
    assert {case.rule for case in CASES.values()} == found


def test_whoever_asks_for_a_type_leaves_the_node_as_it_is() -> None:
    view = Graph(
        graph_from_text("x = Placeholder\ny = Cast(x) SrcT=float32 DstT=int32")
    )
    given = view.nodes[1].proto.SerializeToString()
    assert not is_float32(view.nodes[1])
    assert view.nodes[1].proto.SerializeToString() == given


def test_a_graph_whose_shapes_nobody_asks_for_is_no_case() -> None:
    with pytest.raises(ValueError, match="without a product"):
        fused("x = Placeholder\nact = Tanh(x)", {"x": (8,)}, Item(("act",)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule_changes_what_its_lines_say(case: Case) -> None:
    rewrite = case()
    before = text_from_graph(graph_from_text(case.text)).splitlines()
    after = text_from_graph(rewrite.graph_def).splitlines()
    assert tuple(line for line in after if line not in before) == case.changed
    (fusion,) = done_in(rewrite.plan)
    assert fusion.rule == case.rule
    assert fusion.seconds > 0.0
    assert f"fused: {case.rule} 1" in rewrite.plan.details()


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
    done = [each.rule for each in done_in(rewrite.plan)]
    assert done == [rules.rule] * is_fused
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


def test_rows_of_loops_may_be_in_16_bits_but_not_what_is_summed_over_them() -> None:
    case = CASES["loop_sums"]
    text = case.text.replace(
        "dz = Mul(entered_x, number)",
        "dz = Tanh(made)\nmade = MatMul(entered_x, weights)\nweights = Const(^at)",
    )
    models = {"CPU": CostModel(DeviceProfile.load("cpu-avx512-bf16"))}
    rewrite = case(text, models=models, opt_level="O2")
    nodes = [node for node in rewrite.graph_def.node if "final/" in node.name]
    pushed = [n.attr["element_dtype"].type for n in nodes if "PushBack" in n.op]
    assert pushed == [tf.bfloat16, tf.bfloat16]
    assert [n.attr["T"].type for n in nodes if n.op == "MatMul"] == [tf.float32]
    # In 16 bits, step by step, so many rows are faster.
    sizes = dict.fromkeys(("x", "entered_x", "dz"), (512, 512))
    assert not case(text, models=models, **sizes).plan.fusions


def test_gelu_of_rows_is_one_kernel_in_16_bits() -> None:
    case = CASES["flat_activations"]
    # Behind the last product all is float32.
    text = case.text.replace("Identity(act)", "BatchMatMulV2(act, act) adj_y=true")
    models = {"CPU": CostModel(DeviceProfile.load("cpu-amx-bf16"))}
    rewrite = case(text, models=models, fetch=(8, 128, 128))
    (product,) = (node for node in rewrite.graph_def.node if node.name == "product")
    assert product.op == "_FusedMatMul"
    assert product.attr["T"].type == tf.bfloat16
    assert list(product.attr["fused_ops"].list.s) == [b"BiasAdd", b"GeluExact"]
