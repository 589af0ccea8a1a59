"""What the caller, the user, an update of a variable or a kernel keeps in float32."""

from __future__ import annotations

import pytest
import tensorflow as tf

from grappler_pass.planning.plan import Cause
from tests.coloring import color
from tests.small_graphs import CHAIN, EXCLUSION, STEP

# What the caller holds.


@pytest.mark.parametrize("where", ["fetch", "feed"])
def test_fetched_and_fed_nodes_keep_their_dtype(where: str) -> None:
    graph = (
        CHAIN + "clear1 = Relu(allow1)\nallow2 = MatMul(clear1, w)\nend = Relu(allow2)"
    )
    colored = color(graph, **{where: "clear1 end"})
    assert colored.colors("allow1 clear1 allow2") == "L F L"
    assert colored.cause("clear1") is Cause.PRESERVED


def test_nothing_behind_a_barrier_goes_low() -> None:
    graph = (
        CHAIN
        + """
        inverse = Placeholder
        unscaled = Mul(allow1, inverse) _tf_amp_barrier=true
        clear1 = Relu(unscaled)
        allow2 = MatMul(clear1, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("allow1 unscaled clear1 allow2") == "L F F F"
    assert colored.cause("allow2") is Cause.BARRIER
    assert colored.detail("allow2") == "unscaled"


def test_a_barrier_mark_that_is_false_stops_nothing() -> None:
    graph = (
        CHAIN
        + """
        scaled = Mul(allow1, x) _tf_amp_barrier=false
        fetch = Identity(scaled)
    """
    )
    assert color(graph, fetch="fetch").colors("scaled") == "L"


@pytest.mark.parametrize(
    ("dtype", "colors"), [("float16", "F F L"), ("bfloat16", "L L L")]
)
def test_what_a_loss_scale_meets_before_a_product_stays_float32(
    dtype: str, colors: str
) -> None:
    graph = (
        CHAIN
        + """
        scale = Placeholder _tf_amp_loss_scale=true
        scaled = Mul(allow1, scale)
        clear1 = Relu(scaled)
        allow2 = MatMul(clear1, w)
        clear2 = Relu(allow2)
        fetch = Identity(clear2)
    """
    )
    colored = color(graph, fetch="fetch", low_dtype=dtype)
    assert colored.colors("scaled clear1 clear2") == colors
    assert colored.colors("allow1 allow2") == "L L"


# The user's opt-outs.

EXCLUSION_NAMES = """model/body/MatMul gradient_tape/model/body/MatMul/MatMul_1
    model/head/MatMul gradient_tape/model/head/MatMul/MatMul_1
    train/gradients_1/model/head/MatMul_grad/MatMul
    PartitionedCall/gradient_tape/model/head/MatMul/MatMul"""


@pytest.mark.parametrize(
    "pattern", ["head", "^model/head/", "head/MatMul$", r"^model/head/MatMul$"]
)
def test_an_excluded_op_takes_its_gradients_along(pattern: str) -> None:
    colored = color(EXCLUSION, fetch="fetch", exclude=(pattern,))
    assert colored.colors(EXCLUSION_NAMES) == "L L F F F F"
    assert colored.detail("model/head/MatMul") == pattern
    assert colored.cause("model/head/MatMul") is Cause.EXCLUDED


def test_a_pattern_that_finds_nothing_excludes_nothing() -> None:
    colored = color(EXCLUSION, fetch="fetch", exclude=("^head", "tail"))
    assert colored.colors(EXCLUSION_NAMES) == "L L L L L L"


# Updates of variables.


@pytest.mark.parametrize("fetch", ["", "relu"])
def test_optimizer_arithmetic_stays_whatever_the_step_returns(fetch: str) -> None:
    colored = color(STEP, fetch=fetch)
    arithmetic = "square scaled stepped bias_step"
    assert colored.colors(arithmetic) == "F F F F"
    assert {colored.cause(n) for n in arithmetic.split()} == {Cause.STATE_UPDATE}
    assert colored.detail("scaled") == "moved"
    assert colored.colors("forward relu_grad weight_grad") == "L L L"
    assert colored.cause("bias_grad") is Cause.SUM


def test_what_is_also_read_elsewhere_is_no_update() -> None:
    graph = (
        STEP + "norm = Relu(stepped)\nallow2 = MatMul(norm, x)\nfetch = Relu(allow2)"
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("stepped square") == "L F"


def test_a_dead_reader_does_not_keep_a_node_out_of_the_update() -> None:
    graph = STEP + "unused = Relu(stepped)"
    assert color(graph, fetch="relu").colors("stepped") == "F"


def test_an_accumulation_in_a_loop_belongs_to_the_update_it_feeds() -> None:
    graph = """
        handle = VarHandleOp dtype=float32 shape=[2,2]
        x = Placeholder
        more = Placeholder dtype=bool
        grad = MatMul(x, x)
        enter = Enter(grad) frame_name=loop
        merge = Merge(enter, next)
        go = LoopCond(more)
        switch = Switch(merge, go)
        body = Mul(switch:1, switch:1)
        next = NextIteration(body)
        exit = Exit(switch)
        update = AssignSubVariableOp(handle, exit)
    """
    colored = color(graph)
    assert colored.colors("grad enter merge switch body next exit") == "L F F F F F F"
    assert colored.cause("body") is Cause.STATE_UPDATE


def test_reference_variables_have_updates_too() -> None:
    graph = """
        variable = VariableV2 shape=[2,2]
        rate = Placeholder
        x = Placeholder
        grad = MatMul(x, x)
        scaled = Mul(grad, rate)
        update = ApplyGradientDescent(variable, rate, scaled)
        index = Placeholder dtype=int32
        rows = Mul(grad, rate)
        scatter = ScatterSub(variable, index, rows)
        pure = ScatterNd(index, grad, index) Tindices=int32
        fetch = Identity(pure)
    """
    colored = color(graph, fetch="fetch update scatter")
    assert colored.colors("grad scaled rows pure") == "L F F F"


# What a kernel cannot do.


@pytest.mark.parametrize("op", ["Elu", "Selu"])
def test_an_op_whose_kernel_cancels_stays_float32_at_every_level(op: str) -> None:
    kernel = getattr(tf.raw_ops, op)
    small = tf.constant([-1e-3])
    low = tf.cast(kernel(features=tf.cast(small, "bfloat16")), "float32")
    assert abs(low / kernel(features=small) - 1) > 0.5, "the rule is not needed"

    graph = f"{CHAIN}\nact = {op}(allow1)\nfetch = Identity(act)"
    for level in ("O2", "O3"):
        colored = color(graph, fetch="fetch", opt_level=level)
        assert colored.colors("allow1 act") == "L F"
        assert colored.cause("act") is Cause.IMPRECISE


@pytest.mark.parametrize("low_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("last", "color_of_it"), [("Elu", "F"), ("Tanh", "L")])
def test_a_fused_op_is_split_only_where_no_part_of_it_cancels(
    low_dtype: str, last: str, color_of_it: str
) -> None:
    graph = f"""
        {CHAIN}
        bias = Placeholder
        fused = _FusedConv2D(allow1, w, bias) num_args=1 fused_ops=[BiasAdd,{last}] \
strides=[1,1,1,1] padding=SAME
        allow2 = MatMul(fused, w)
        fetch = Identity(allow2)
    """
    colored = color(graph, fetch="fetch", low_dtype=low_dtype)
    assert colored.colors("allow1 fused") == f"L {color_of_it}"
    if color_of_it == "F":
        assert colored.cause("fused") is Cause.IMPRECISE
        assert colored.detail("fused") == f"{last} in {low_dtype} on CPU"


def test_products_beside_a_decomposition_stay_float32() -> None:
    graph = (
        CHAIN
        + """
        features = Relu(allow1)
        covariance = MatMul(features, features)
        stable = AddV2(covariance, x)
        factor = Cholesky(stable)
        cancelling = MatMul(factor, features)
        allow2 = MatMul(cancelling, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("allow1 features covariance stable") == "L L F F"
    assert colored.colors("factor cancelling allow2") == "F F L"
    assert colored.cause("covariance") is Cause.DECOMPOSITION
    assert colored.detail("cancelling") == "factor"


@pytest.mark.parametrize("opt_level", ["O1", "O3"])
def test_what_reads_another_type_than_it_says_stays_as_it_is(opt_level: str) -> None:
    """TensorFlow's optimizer makes ArgMin and an Identity of ArgMax behind Neg."""
    colored = color(
        CHAIN
        + """
        nearest = ArgMin(allow1, axis) output_type=int64
        neg = Identity(nearest) T=float
        fetch = Cast(neg) SrcT=int64 DstT=int32
    """,
        fetch="fetch",
        opt_level=opt_level,
    )
    assert colored.colors("allow1 neg") == "L F"
    assert colored.cause("neg") is Cause.NOT_FLOAT32
    assert colored.detail("neg") == "reads int64"
