"""Seconds per step of nodes and casts: what an added node costs, and who is charged."""

from __future__ import annotations

import pytest

from grappler_pass.graph.view import Port
from grappler_pass.planning.decisions import UnaskedSteps
from grappler_pass.planning.prices import NODE_SECONDS
from tests.grappler_pass.planning.drafts import (
    down,
    planned,
    problem_of,
    seconds,
    types,
)
from tests.small_graphs import LOOP

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


LARGE_LAYERS = SMALL_LAYERS.replace("32", "1024").replace("64", "1024")


@pytest.mark.parametrize("low_dtype", ["float16", "bfloat16"])
def test_small_layers_are_not_worth_their_casts(low_dtype: str) -> None:
    assert planned(SMALL_LAYERS, low_dtype=low_dtype).plan.is_empty


@pytest.mark.parametrize(
    ("profile", "overhead"), [("cpu-avx512-bf16", NODE_SECONDS), ("v100", 0.0)]
)
def test_an_added_cast_costs_a_cpu_more_than_its_kernel(
    profile: str, overhead: float
) -> None:
    draft = planned(SMALL_LAYERS, profile, "float16")
    model = draft.settings.models["CPU"].of_device
    kernel = model.cast_price(64 * 64, "float32", "float16").seconds
    assert down(draft, "w2") == pytest.approx(kernel + overhead)


def test_a_constant_is_cast_beforehand_and_costs_nothing_unless_it_is_fed() -> None:
    ones = ",".join(["1"] * 64)
    given = "b2 = Placeholder shape=[64]"
    text = SMALL_LAYERS.replace(given, f"b2 = Const value=[{ones}]")
    assert down(planned(text), "b2") == 0.0
    assert down(planned(text, feed=("b2",)), "b2") > 0.0


def test_every_node_that_may_go_low_knows_its_call_and_its_error() -> None:
    draft = planned(SMALL_LAYERS)
    layer, x = draft.view.index["layer1"], draft.view.index["x"]
    assert draft.prices.calls[layer] is not None
    assert min(draft.prices.errors[layer]) > 0.0
    assert draft.prices.calls[x] is None and draft.prices.low[x] is None


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


def test_a_table_that_is_trained_by_rows_is_copied_whole_to_be_read() -> None:
    only_read = planned(TABLE.format(rows=LARGE))
    trained = planned((TABLE + UPDATE).format(rows=LARGE))
    assert seconds(only_read, "whole")[0] == 0.0
    # 256 MB read and written, at no more than memory gives.
    assert 2 * 256e6 / 100e9 < seconds(trained, "whole")[0] < 2 * 256e6 / 10e9
    # Rows cost more where the cache cannot hold their table.
    small = planned((TABLE + UPDATE).format(rows=1000))
    for node in ("rows", "update"):
        assert seconds(trained, node)[0] > 3 * seconds(small, node)[0]


def test_a_table_stays_though_what_reads_it_first_stays_in_any_case() -> None:
    first = "penalized = ReadVariableOp(table) dtype=float\npenalty = L2Loss(penalized)"
    draft = planned(TABLE.replace("axis =", f"{first}\naxis =").format(rows=LARGE))
    assert types(draft)["rows"] == "float32"
    index = draft.view.index
    assert draft.reads.canonical == {
        Port(index["whole"], 0): Port(index["penalized"], 0)
    }
    assert down(draft, "penalized") > 256e6 / 100e9


def test_starting_a_graph_and_its_nodes_costs_both_types_alike() -> None:
    draft = planned(LARGE_LAYERS)
    plan = draft.plan
    assert not plan.is_empty and 0.0 < plan.call_seconds < 1e-3
    kernels = sum(draft.prices.float32)
    nodes = NODE_SECONDS * len(draft.view.nodes)
    assert plan.seconds_before == pytest.approx(plan.call_seconds + nodes + kernels)
    gain = sum(row.gain_seconds for row in plan.decisions if row.is_low)
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
    decided = types(planned(BESIDE_PRODUCTS.format(middle=middle)))
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
    decided = types(planned(text, own_steps=UnaskedSteps()))
    assert decided["product"] == "bfloat16"
    assert {name: decided[name] for name in expected} == expected


def test_what_crosses_devices_takes_half_as_long_in_16_bits() -> None:
    alone, across = (
        seconds(
            planned(
                f"""
                x = Placeholder shape=[512,512] @/device:CPU:0
                product = MatMul(x, x) @/device:CPU:0
                y = MatMul(product, product) @/device:CPU:{place}
                """
            ),
            "product",
        )
        for place in (0, 1)
    )
    float32, low = (after - before for before, after in zip(alone, across, strict=True))
    assert float32 > 0 and low == pytest.approx(float32 / 2)


def test_what_runs_in_a_loop_is_charged_for_each_iteration() -> None:
    loop = f"{LOOP}\ny = Sin(fetch)"
    few, many = (
        seconds(planned(loop.replace("int32 value=3", f"int32 value={n}")), "product")
        for n in (3, 30)
    )
    assert few[0] > 0 and few[1] > 0
    assert many == pytest.approx([10 * each for each in few])


def test_a_tie_favors_what_writes_16_bits_alone() -> None:
    draft = planned(
        """
        x = Placeholder shape=[64,64]
        b = Placeholder shape=[64]
        first = MatMul(x, x)
        last = _FusedMatMul(first, x, b) num_args=1 fused_ops=[BiasAdd]
        y = Sin(last)
        """
    )
    index, slots_of = draft.view.index, draft.slots.slots_of
    assert draft.slots.has_float32_results(index["last"])
    variables, plain = problem_of(draft)
    favored = problem_of(draft, 0.1)[1].low_seconds
    first, last = (variables[slots_of[index[n]][0]] for n in ("first", "last"))
    assert favored[first] < plain.low_seconds[first]
    assert favored[last] == plain.low_seconds[last]


BROADCAST = """
x = Placeholder shape=[32,16,16,64]
largest = Placeholder shape=[{sizes}]
scaled = Mul(x, largest)
filters = Placeholder shape=[1,1,64,64]
y = Conv2D(scaled, filters) strides=[1,1,1,1] padding=SAME
"""


WHOLE = "32,16,16,64"


@pytest.mark.parametrize(
    ("sizes", "same"), [("-1,-1,-1,-1", WHOLE), ("32,-1,-1,64", WHOLE), ("-1", "64")]
)
def test_an_operand_of_unknown_sizes_is_no_larger_than_the_result(
    sizes: str, same: str
) -> None:
    known = seconds(planned(BROADCAST.format(sizes=same)), "scaled")
    guessed = seconds(planned(BROADCAST.format(sizes=sizes)), "scaled")
    assert guessed == pytest.approx(known)
