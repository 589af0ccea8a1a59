"""Seconds per step of nodes and casts: what an added node costs, and who is charged."""

from __future__ import annotations

import pytest

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item, Port
from grappler_pass.pipeline import optimize
from grappler_pass.planning.coloring import Variables, problem_from_prices
from grappler_pass.planning.decisions import UnaskedSteps
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.plan import Plan
from grappler_pass.planning.prices import NODE_SECONDS
from tests.rewriters import settings_of
from tests.small_graphs import LOOP
from tests.text_graph import graph_from_text

SMALL_LAYERS = """
x = Placeholder shape=[32,32]
w1 = Placeholder shape=[32,64]
b1 = Placeholder shape=[64]
w2 = Placeholder shape=[64,64]
b2 = Placeholder shape=[64]
w3 = Placeholder shape=[64,10]
b3 = Placeholder shape=[10]
layer1 = _FusedMatMul(x, w1, b1) fused_ops=[BiasAdd,Relu] num_args=1
layer2 = _FusedMatMul(layer1, w2, b2) fused_ops=[BiasAdd,Relu] num_args=1
y = _FusedMatMul(layer2, w3, b3) fused_ops=[BiasAdd] num_args=1
"""


def planned(
    text: str,
    low_dtype: str,
    profile: str,
    *,
    feed: tuple[str, ...] = (),
    **given: object,
) -> tuple[Plan, Draft]:
    graph = graph_from_text(text)
    drafts: list[Draft] = []
    models = {"CPU": CostModel(DeviceProfile.load(profile))}
    rewrite = optimize(
        graph,
        Item(fetch=("y",), feed=feed),
        settings_of(low_dtype, "O1", models=models, **given),
        shapes=lambda: shapes_from_graph_def(graph),
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    assert rewrite.plan is not None
    return rewrite.plan, drafts[-1]


@pytest.mark.parametrize("low_dtype", ["float16", "bfloat16"])
def test_small_layers_are_not_worth_their_casts(low_dtype: str) -> None:
    plan, _ = planned(SMALL_LAYERS, low_dtype, "cpu-avx512-bf16")
    assert plan.is_empty


def test_large_layers_are() -> None:
    text = SMALL_LAYERS.replace("32", "1024").replace("64", "1024")
    plan, _ = planned(text, "bfloat16", "cpu-avx512-bf16")
    assert not plan.is_empty


@pytest.mark.parametrize(
    ("profile", "overhead"), [("cpu-avx512-bf16", NODE_SECONDS), ("v100", 0.0)]
)
def test_an_added_cast_costs_a_cpu_more_than_its_kernel(
    profile: str, overhead: float
) -> None:
    _, draft = planned(SMALL_LAYERS, "float16", profile)
    model = draft.settings.models["CPU"]
    port = Port(draft.view.index["w2"], 0)
    kernel = model.cast_price(64 * 64, "float32", "float16").seconds
    assert draft.prices.down[port] == pytest.approx(kernel + overhead)


def test_a_constant_is_cast_beforehand_and_costs_nothing_unless_it_is_fed() -> None:
    ones = ",".join(["1"] * 64)
    given = "b2 = Placeholder shape=[64]"
    text = SMALL_LAYERS.replace(given, f"b2 = Const value=[{ones}]")
    _, draft = planned(text, "bfloat16", "cpu-avx512-bf16")
    assert draft.prices.down[Port(draft.view.index["b2"], 0)] == 0.0
    _, draft = planned(text, "bfloat16", "cpu-avx512-bf16", feed=("b2",))
    assert draft.prices.down[Port(draft.view.index["b2"], 0)] > 0.0


def test_every_node_that_may_go_low_knows_its_call_and_its_error() -> None:
    _, draft = planned(SMALL_LAYERS, "bfloat16", "cpu-avx512-bf16")
    index = draft.view.index
    assert draft.prices.calls[index["layer1"]] is not None
    assert min(draft.prices.errors[index["layer1"]]) > 0.0
    assert draft.prices.calls[index["x"]] is None
    assert draft.prices.low[index["x"]] is None


TABLE = """
table = VarHandleOp dtype=float shape=[{rows},64] shared_name=table
ids = Placeholder dtype=int32 shape=[1024]
axis = Const dtype=int32 value=0
whole = ReadVariableOp(table) dtype=float
rows = GatherV2(whole, ids, axis) Tparams=float Tindices=int32 Taxis=int32
w = Placeholder shape=[64,64]
product = MatMul(rows, w)
y = MatMul(product, w)
"""
UPDATE = "update = ResourceScatterSub(table, ids, y) dtype=float Tindices=int32"
LARGE = 1_000_000


def float32_seconds(text: str) -> dict[str, float]:
    _, draft = planned(text, "bfloat16", "cpu-avx512-bf16")
    return dict(zip(draft.view.index, draft.prices.float32, strict=True))


def test_a_table_that_is_trained_by_rows_is_copied_whole_to_be_read() -> None:
    only_read = float32_seconds(TABLE.format(rows=LARGE))
    trained = float32_seconds((TABLE + UPDATE).format(rows=LARGE))
    assert only_read["whole"] == 0.0
    # 256 MB read and written, at no more than memory gives.
    assert 2 * 256e6 / 100e9 < trained["whole"] < 2 * 256e6 / 10e9


def test_rows_cost_more_where_the_cache_cannot_hold_their_table() -> None:
    small, large = (
        float32_seconds((TABLE + UPDATE).format(rows=rows)) for rows in (1000, LARGE)
    )
    assert large["rows"] > 3 * small["rows"]
    assert large["update"] > 3 * small["update"]


def test_a_table_stays_though_what_reads_it_first_stays_in_any_case() -> None:
    first = "penalized = ReadVariableOp(table) dtype=float\npenalty = L2Loss(penalized)"
    text = TABLE.replace("axis =", f"{first}\naxis =").format(rows=LARGE)
    plan, draft = planned(text, "bfloat16", "cpu-avx512-bf16")
    decided = {row.slot.node: row.dtype for row in plan.decisions}
    assert decided["rows"] == "float32"
    index = draft.view.index
    assert draft.reads.canonical == {
        Port(index["whole"], 0): Port(index["penalized"], 0)
    }
    assert draft.prices.down[Port(index["penalized"], 0)] > 256e6 / 100e9


def test_starting_a_graph_and_its_nodes_costs_both_types_alike() -> None:
    text = SMALL_LAYERS.replace("32", "1024").replace("64", "1024")
    plan, draft = planned(text, "bfloat16", "cpu-avx512-bf16")
    rows = [row for row in plan.decisions if row.is_low]
    assert 0.0 < plan.call_seconds < 1e-3
    kernels = sum(draft.prices.float32)
    nodes = NODE_SECONDS * len(draft.view.nodes)
    assert plan.seconds_before == pytest.approx(plan.call_seconds + nodes + kernels)
    gain = sum(row.gain_seconds for row in rows)
    assert plan.seconds_before - plan.seconds_after == pytest.approx(gain)


BESIDE_PRODUCTS = """
x = Placeholder shape=[1024,512]
w = Placeholder shape=[512,512]
before = MatMul(x, w)
{middle}
after = MatMul(middle, w)
y = Identity(after)
"""


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        ("middle = Relu(before)", "bfloat16"),
        ("middle = Sigmoid(before)", "float32"),
        ("middle = SigmoidGrad(before, before)", "float32"),
        ("middle = TanhGrad(before, before)", "float32"),
        # The exact gelu, and the variance of a decomposed layer normalization.
        ("gelu = Erfc(before)\nmiddle = Mul(gelu, before)", "float32"),
        ("middle = SquaredDifference(before, before)", "float32"),
    ],
)
def test_what_is_slower_in_16_bits_stays_float32_between_products(
    middle: str, expected: str
) -> None:
    text = BESIDE_PRODUCTS.format(middle=middle)
    plan, _ = planned(text, "bfloat16", "cpu-avx512-bf16")
    decided = {row.slot.node: row.dtype for row in plan.decisions}
    assert decided["before"] == "bfloat16"
    assert decided[middle.partition(" ")[0]] == expected


DEPTHWISE_GRADIENTS = """
sizes = Const dtype=int32 value=[16,56,56,96]
filter_sizes = Const dtype=int32 value=[{k},{k},96,1]
filter = Placeholder shape=[{k},{k},96,1]
x = Placeholder shape=[16,56,56,96]
above = Placeholder shape=[16,{o},{o},96]
w = Placeholder shape=[1,1,96,96]
product = Conv2D(above, w) strides=[1,1,1,1] padding=SAME
input = DepthwiseConv2dNativeBackpropInput(sizes, filter, product) {how}
filters = DepthwiseConv2dNativeBackpropFilter(x, filter_sizes, product) {how}
y = Identity(input)
z = Identity(filters)
"""


@pytest.mark.parametrize(
    ("kernel", "stride", "expected"),
    [
        (3, 1, {"input": "bfloat16", "filters": "bfloat16"}),
        (3, 2, {"input": "float32"}),
        (5, 1, {"filters": "float32"}),
    ],
)
def test_depthwise_gradients_go_low_only_where_they_gain(
    kernel: int, stride: int, expected: dict[str, str]
) -> None:
    text = DEPTHWISE_GRADIENTS.format(
        k=kernel, o=56 // stride, how=f"strides=[1,{stride},{stride},1] padding=SAME"
    )
    steps = UnaskedSteps()
    plan, _ = planned(text, "bfloat16", "cpu-avx512-bf16", own_steps=steps)
    decided = {row.slot.node: row.dtype for row in plan.decisions}
    assert decided["product"] == "bfloat16"
    assert {name: decided[name] for name in expected} == expected


def test_what_crosses_devices_takes_half_as_long_in_16_bits() -> None:
    def seconds(place: str) -> tuple[float, float]:
        text = f"""
            x = Placeholder shape=[512,512] @/device:CPU:0
            product = MatMul(x, x) @/device:CPU:0
            y = MatMul(product, product) {place}
            """
        _, draft = planned(text, "bfloat16", "cpu-avx512-bf16")
        node = draft.view.index["product"]
        return draft.prices.float32[node], draft.prices.low[node]

    alone, across = seconds("@/device:CPU:0"), seconds("@/device:CPU:1")
    float32, low = (after - before for before, after in zip(alone, across, strict=True))
    assert float32 > 0 and low == pytest.approx(float32 / 2)


def test_what_runs_in_a_loop_is_charged_for_each_iteration() -> None:
    def seconds(count: int) -> tuple[float, float]:
        loop = LOOP.replace("dtype=int32 value=3", f"dtype=int32 value={count}")
        _, draft = planned(f"{loop}\ny = Sin(fetch)", "bfloat16", "cpu-avx512-bf16")
        node = draft.view.index["product"]
        return draft.prices.float32[node], draft.prices.low[node]

    few, many = seconds(3), seconds(30)
    assert few[0] > 0 and few[1] > 0
    assert many == pytest.approx([10 * each for each in few])


def test_a_tie_favors_what_writes_16_bits_alone() -> None:
    _, draft = planned(
        """
        x = Placeholder shape=[64,64]
        b = Placeholder shape=[64]
        first = MatMul(x, x)
        last = _FusedMatMul(first, x, b) num_args=1 fused_ops=[BiasAdd]
        y = Sin(last)
        """,
        "bfloat16",
        "cpu-avx512-bf16",
    )
    assert draft.slots.has_float32_results(draft.view.index["last"])
    variables = Variables.from_constraints(draft.constraints)
    first, last = (
        variables.of(draft.slots.slots_of[draft.view.index[name]][0])
        for name in ("first", "last")
    )
    plain, favored = (
        problem_from_prices(draft, variables, tie).low_seconds for tie in (0.0, 0.1)
    )
    assert favored[first] < plain[first] and favored[last] == plain[last]
