"""Values that must not be rounded, and constants that must not overflow."""

from __future__ import annotations

import pytest

from grappler_pass.planning.plan import Cause
from tests.coloring import color
from tests.small_graphs import CHAIN

# Exact values and ranges.


def test_whole_numbers_on_their_way_to_an_index_stay_exact() -> None:
    graph = (
        CHAIN
        + """
        ids = Placeholder dtype=int32
        as_float = Cast(ids) SrcT=int32 DstT=float32
        joined = Mul(as_float, allow1)
        clear1 = Reshape(joined, axis)
        as_int = Cast(clear1) SrcT=float32 DstT=int32
        rows = GatherV2(w, as_int, axis) Tindices=int32 Taxis=int32
        allow2 = MatMul(rows, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("joined clear1 rows allow2") == "F F L L"
    assert colored.cause("clear1") is Cause.EXACT


def test_ids_fed_as_float32_stay_exact_beside_features() -> None:
    graph = (
        CHAIN
        + """
        flat = Reshape(x, axis)
        ids = Cast(flat) SrcT=float32 DstT=int32
        allow2 = MatMul(flat, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch ids")
    assert colored.colors("flat allow2") == "F L"


def test_bytes_become_features() -> None:
    graph = (
        CHAIN
        + """
        image = Placeholder dtype=uint8
        as_float = Cast(image) SrcT=uint8 DstT=float32
        moved = Reshape(as_float, axis)
        allow2 = MatMul(moved, w)
        fetch = Identity(allow2)
    """
    )
    assert color(graph, fetch="fetch").colors("moved allow2") == "L L"


def test_positions_that_become_angles_stay_exact_even_in_a_product() -> None:
    graph = """
        positions = Placeholder dtype=int32
        frequencies = Placeholder
        axis = Const dtype=int32
        as_float = Cast(positions) SrcT=int32 DstT=float32
        angles = Einsum(as_float, frequencies) equation=i,j->ij
        both = ConcatV2(angles, angles, axis)
        cosine = Cos(both)
        plain = Einsum(as_float, frequencies) equation=ij,jk->ik
        fetch = IdentityN(cosine, plain)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("angles both plain") == "F F L"
    assert colored.cause("angles") is Cause.EXACT


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_random_draws_are_compared_exactly(level: str) -> None:
    graph = (
        CHAIN
        + """
        shape = Const dtype=int32
        draw = RandomUniform(shape) T=int32
        shifted = AddV2(draw, allow1)
        keep = GreaterEqual(shifted, x)
        mask = Cast(keep) SrcT=bool DstT=float32
        dropped = Mul(allow1, mask)
        fetch = Identity(dropped)
    """
    )
    colored = color(graph, fetch="fetch", opt_level=level)
    assert colored.colors("draw shifted keep dropped") == "F F F L"
    assert colored.cause("keep") is Cause.EXACT


@pytest.mark.parametrize("op", ["Floor", "Log"])
def test_a_draw_just_below_one_is_not_rounded_to_one(op: str) -> None:
    graph = (
        CHAIN
        + f"""
        shape = Const dtype=int32
        draw = RandomUniform(shape) T=int32
        moved = Reshape(draw, shape)
        result = {op}(moved)
        dropped = Mul(allow1, result)
        fetch = Identity(dropped)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("moved result dropped") == "F F L"


MASKED = """
    x = Placeholder
    w = Placeholder
    large = Const value={}
    scores = MatMul(x, w)
    bias = Mul(scores, large)
    masked = AddV2(scores, bias)
    clear1 = Maximum(masked, scores)
    weights = Softmax(clear1)
    context = MatMul(weights, w)
    fetch = Identity(context)
"""
MASKED_NAMES = "scores bias masked clear1 weights context"


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ("-1e9", "float16", "L F F F F L"),
        ("-1e9", "bfloat16", "L F L L L L"),
        ("-3.4028235e38", "bfloat16", "L F F F F L"),
        ("-inf", "float16", "L L L L L L"),
        ("1e-7", "float16", "L F F F F L"),
        ("1e-7", "bfloat16", "L F L L L L"),
        ("0.125", "float16", "L L L L L L"),
    ],
)
def test_a_constant_that_does_not_fit_keeps_its_readers(
    value: str, dtype: str, expected: str
) -> None:
    colored = color(MASKED.format(value), fetch="fetch", low_dtype=dtype)
    assert colored.colors(MASKED_NAMES) == expected


def test_a_product_that_reads_a_large_constant_unchanged_stays() -> None:
    graph = """
        x = Placeholder
        large = Const value=[1.0,1e9]
        column = Reshape(large, axis)
        axis = Const dtype=int32
        product = MatMul(x, column)
        other = MatMul(product, x)
        fetch = Identity(other)
    """
    colored = color(graph, fetch="fetch", low_dtype="float16")
    assert colored.colors("product other") == "F L"
    assert colored.cause("product") is Cause.RANGE
    assert colored.detail("product") == "large"
