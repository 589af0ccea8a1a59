"""What cuDNN leaves for its backward kernels is read in the same type, uncast."""

from __future__ import annotations

import pytest
import tensorflow as tf

from grappler_pass.graph.view import Item
from grappler_pass.planning.plan import Cause
from tests.coloring import Colored, color
from tests.rewriters import ArbitraryPrices, rewritten_by, settings_of
from tests.text_graph import graph_from_text

GPU = "@/device:ABSENT_GPU:0"
_CONVOLUTION = f"strides=[1,1,1,1] padding=SAME {GPU}"
NORM = f"""
    x = Placeholder
    w = Placeholder
    scale = Placeholder
    dy = Placeholder
    conv = Conv2D(x, w) {_CONVOLUTION}
    norm = FusedBatchNormV3(conv, scale, scale, scale, scale) {GPU}
    result = Conv2D(norm, w) {_CONVOLUTION}
    error = Conv2D(dy, w) {_CONVOLUTION}
"""
HELD = f"""
    held = Identity(norm:5) {GPU}
    grad = FusedBatchNormGradV3(error, conv, scale, norm:3, norm:4, held) {GPU}
    before = Conv2D(grad, w) {_CONVOLUTION}
    fetch = IdentityN(result, before)
"""
LISTED = f"""
    zero = Const dtype=int32
    empty = EmptyTensorList(zero, zero) shape_type=int32 element_dtype=float32 {GPU}
    full = TensorListPushBack(empty, norm:5) {GPU}
    passed = Identity(full) T=variant {GPU}
    popped = TensorListPopBack(passed, zero) element_dtype=float32 {GPU}
    grad = FusedBatchNormGradV3(error, conv, scale, norm:3, norm:4, popped:1) {GPU}
    before = Conv2D(grad, w) {_CONVOLUTION}
    fetch = IdentityN(result, before)
"""
BRANCHES = f"""
    which = Placeholder dtype=bool
    switch = Switch(norm:5, which) {GPU}
    one = Identity(switch:1) {GPU}
    other = IdentityN(error, switch) {GPU}
    merge = Merge(one, other:1) {GPU}
    grad = FusedBatchNormGradV3(error, conv, scale, norm:3, norm:4, merge) {GPU}
    before = Conv2D(grad, w) {_CONVOLUTION}
    fetch = IdentityN(result, before)
"""
WAYS = {"held": HELD, "listed": LISTED, "branches": BRANCHES}
EX = NORM.replace("FusedBatchNormV3", "_FusedBatchNormEx")
EX_GRAD = f"""
    grad = _FusedBatchNormGradEx(error, conv, scale, norm:3, norm:4, norm:5, scale, \
norm) activation_mode=Relu {GPU}
    before = Conv2D(grad, w) {_CONVOLUTION}
    fetch = IdentityN(result, before)
"""


def colored(graph: str, dtype: str = "bfloat16", **told: str) -> Colored:
    """Propagate through a graph, of which the last node is fetched."""
    fetch = f"fetch {told.pop('fetch', '')}"
    return color(graph, fetch=fetch, low_dtype=dtype, **told)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["O1", "O3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_both_ends_of_a_reserve_space_agree(way: str, level: str, dtype: str) -> None:
    found = colored(NORM + WAYS[way], dtype, opt_level=level)
    assert found.colors("norm.T norm.U grad.T grad.U") == "L F L F"
    assert found.tied("norm.T", "grad.T")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["O1", "O3"])
def test_one_end_that_stays_float32_keeps_the_other(way: str, level: str) -> None:
    found = colored(NORM + WAYS[way], opt_level=level, fetch="grad")
    assert found.colors("conv norm.T grad.T") == "L F F"
    assert found.cause("norm.T") is Cause.TIED
    assert found.detail("norm.T") == "grad.T"


def test_what_passes_a_reserve_space_on_is_not_cast() -> None:
    assert colored(NORM + HELD, opt_level="O3").colors("held") == "F"
    branches = colored(NORM + BRANCHES, opt_level="O3")
    assert branches.colors("switch one merge") == "F F F"
    assert branches.colors("other.T other.T[1]") == "L F"
    listed = colored(NORM + LISTED, opt_level="O3")
    assert listed.colors("full popped") == "F F"


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_the_rewritten_graph_hands_a_reserve_space_on_as_it_is(level: str) -> None:
    graph_def, item = graph_from_text(NORM + HELD), Item(fetch=("fetch",))
    models = dict.fromkeys(("CPU", "ABSENT_GPU"), ArbitraryPrices(0))
    settings = settings_of("float16", level, models=models, exclude=("^grad$",))
    made = rewritten_by(graph_def, item, settings).graph_def
    nodes = {node.name: node for node in made.node}
    assert nodes["held"].input[0] == "norm:5"
    assert nodes["grad"].input[5] == "held"
    assert nodes["held"].attr["T"].type == tf.float32
    types = [nodes[name].attr["T"].type for name in ("conv", "norm", "grad")]
    assert types == [tf.float16, tf.float32, tf.float32]


def test_fused_normalizations_agree_too() -> None:
    assert colored(EX + EX_GRAD, "float16").colors("norm.T grad.T") == "L L"
    # Its backward kernel has no bfloat16.
    assert colored(EX + EX_GRAD, "bfloat16").colors("norm.T grad.T") == "F F"


def test_statistics_stay_float32_where_no_kernel_is_registered() -> None:
    graph = NORM.replace("scale = Placeholder", f"scale = Mul(conv, conv) {GPU}")
    assert colored(graph + "fetch = Identity(result)").colors("norm.T norm.U") == "L F"


def test_two_normalizations_need_not_agree() -> None:
    second = """
    norm2 = FusedBatchNormV3(result, scale, scale, scale, scale) @/device:ABSENT_GPU:0
    grad2 = FusedBatchNormGradV3(error, result, scale, norm2:3, norm2:4, norm2:5) \
@/device:ABSENT_GPU:0
    """
    found = colored(NORM + second + HELD, fetch="grad2")
    assert found.colors("norm.T grad.T norm2.T grad2.T") == "L L F F"


OUTSIDE = {
    "returned": "out = _Retval(norm:5) index=0",
    "fetched": "fetch2 = Identity(norm:5)",
    "passed": "out = PartitionedCall(norm:5) Tin=[float32] Tout=[float32] f=callee",
    "listed": f"""
        zero = Const dtype=int32
        empty = EmptyTensorList(zero, zero) shape_type=int32 element_dtype=float32 {GPU}
        full = TensorListPushBack(empty, norm:5) {GPU}
        out = _Retval(full) T=variant index=0
    """,
}


@pytest.mark.parametrize("way", OUTSIDE)
def test_a_forward_kernel_stays_float32_for_one_in_another_graph(way: str) -> None:
    graph = f"{NORM}\n{OUTSIDE[way]}\nfetch = Identity(result)"
    found = colored(graph, fetch="fetch2" if way == "fetched" else "")
    assert found.colors("conv norm.T result") == "L F L"
    assert found.cause("norm.T") is Cause.RESERVE_ESCAPES
    assert found.detail("norm.T") in ("out", "fetch2")


@pytest.mark.parametrize("source", ["_Arg index=0", "Placeholder"])
def test_a_backward_kernel_stays_float32_for_one_in_another_graph(source: str) -> None:
    graph = NORM + HELD.replace("Identity(norm:5)", source).replace(GPU, "", 1)
    found = colored(graph)
    assert found.colors("norm.T grad.T before") == "L F L"
    assert found.cause("grad.T") is Cause.RESERVE_ESCAPES
    assert found.detail("grad.T") == "held"


@pytest.mark.parametrize("place", ["", f"is_training=false {GPU}"])
def test_on_a_cpu_and_in_inference_nothing_is_tied(place: str) -> None:
    found = colored((NORM + HELD).replace(GPU, place), fetch="grad")
    assert found.colors("norm.T grad.T") == "L F"


RNN = """
    x = Placeholder
    dy = Placeholder
    params = Placeholder
    lengths = Placeholder dtype=int32
    {forward}
    held = Identity(rnn:3) {gpu}
    {backward}
    fetch = AddN(rnn, back)
"""
INPUTS = "x, dy, dy, params"
GRADIENTS = "rnn, rnn:1, rnn:2, dy, dy, dy, held"


@pytest.mark.parametrize("version", ["", "V2", "V3"])
def test_recurrent_kernels_agree_with_their_gradients(version: str) -> None:
    lengths = ", lengths" if version == "V3" else ""
    host = ", rnn:4" if version else ""
    graph = RNN.format(
        gpu=GPU,
        forward=f"rnn = CudnnRNN{version}({INPUTS}{lengths}) {GPU}",
        backward=f"back = CudnnRNNBackprop{version}({INPUTS}{lengths}, {GRADIENTS}"
        f"{host}) {GPU}",
    )
    assert colored(graph).colors("rnn held back") == "L L L"
    kept = colored(graph, fetch="back")
    assert kept.colors("rnn held back") == "F F F"
