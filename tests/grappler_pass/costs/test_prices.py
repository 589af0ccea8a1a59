"""Prices know their source and their error; measured ones win and spread around."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grappler_pass.costs import CostModel, DeviceKey, DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs.database.price_list import Measured, PriceList, Sample
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Probe, cast_probe
from grappler_pass.costs.errors import (
    CALIBRATED,
    GUESSED_SHAPE,
    KINDRED,
    PUBLISHED,
    ROOFLINE,
    RUN_TO_RUN,
)
from grappler_pass.costs.prices import Anchor, ClassPoint, correction_at, typical
from grappler_pass.costs.work.piece import CACHED_BYTES

SHIPPED = DeviceProfile.load("cpu-avx512-bf16")
KEY = DeviceKey("a CPU", frozenset({"avx2"}), 2, onednn=True)
OWN = dataclasses.replace(SHIPPED, device=str(KEY))
EXTENDED = DeviceProfile.from_json(
    {**SHIPPED.data, "name": "sheet", "extends": SHIPPED.name, "classes": {}}
)


def tanh(*shape: int | None) -> OpCall:
    spec = TensorSpec(shape, "float32")
    return OpCall("Tanh", {}, (spec,), (spec,))


def tanh_probe(*shape: int) -> Probe:
    return Probe("Tanh", (), (("T", 0),), (TensorSpec(shape, MEASURED_DTYPE),))


def matmul_probe(m: int, k: int, n: int) -> Probe:
    attrs = tuple(
        (name, "b: false")
        for name in ("grad_a", "grad_b", "transpose_a", "transpose_b")
    )
    specs = (TensorSpec((m, k), MEASURED_DTYPE), TensorSpec((k, n), MEASURED_DTYPE))
    return Probe("MatMul", attrs, (("T", 0),), specs)


def measured(
    probe: Probe, dtype: str, seconds: float, cold: float | None = None
) -> Measured:
    sample = Sample(seconds, cold or seconds, 0.02, 10, 1.0)
    return Measured(probe, dtype, sample)


def model(rows: Iterable[Measured] = (), profile: DeviceProfile = OWN) -> CostModel:
    return CostModel(profile, PriceList(rows))


@pytest.mark.parametrize(
    ("profile", "source", "error"),
    [
        (OWN, "profile", CALIBRATED),
        (SHIPPED, "profile", KINDRED),
        (EXTENDED, "profile", PUBLISHED),
        (DeviceProfile.load("v100"), "roofline", PUBLISHED),
    ],
    ids=["own", "shipped", "extended", "data sheet"],
)
def test_a_profile_is_as_sure_as_it_is_near(
    profile: DeviceProfile, source: str, error: float
) -> None:
    price = CostModel(profile).price(tanh(256, 256), "bfloat16")
    assert price.source == source
    assert price.error == pytest.approx(error)


def test_a_class_that_a_measured_profile_lacks_is_least_sure() -> None:
    spec = TensorSpec((64, 64), "float32")
    price = CostModel(OWN).price(OpCall("Digamma", {}, (spec,), (spec,)), "float32")
    assert (price.source, price.error) == ("roofline", ROOFLINE)


def test_a_guessed_size_adds_to_the_error() -> None:
    price = CostModel(OWN).price(tanh(None, 256), "bfloat16")
    assert price.error == pytest.approx(math.hypot(CALIBRATED, GUESSED_SHAPE))


def test_what_was_measured_counts_before_the_profile() -> None:
    found = model([measured(tanh_probe(256, 256), "bfloat16", 7e-5)])
    price = found.price(tanh(256, 256), "bfloat16", tanh_probe(256, 256))
    assert (price.source, price.seconds) == ("measured", 7e-5)
    assert price.error == pytest.approx(math.hypot(0.02, RUN_TO_RUN))
    float32 = found.price(tanh(256, 256), "float32", tanh_probe(256, 256))
    assert float32 == CostModel(OWN).price(tanh(256, 256), "float32")


def test_a_price_added_later_counts_from_then_on() -> None:
    prices = PriceList()
    found = CostModel(OWN, prices)
    before = found.price(tanh(256, 256), "bfloat16", tanh_probe(256, 256))
    cast = found.cast_price(1000, "float32", "bfloat16")
    prices.add([measured(tanh_probe(256, 256), "bfloat16", 2 * before.seconds)])
    prices.add([measured(cast_probe(1000, "float32", "bfloat16"), "bfloat16", 9e-5)])
    after = found.price(tanh(256, 256), "bfloat16", tanh_probe(256, 256))
    assert after.seconds == 2 * before.seconds
    assert cast.source == "profile"
    assert found.cast_price(1000, "float32", "bfloat16").seconds == 9e-5


def test_between_two_measured_sizes_the_factor_lies_between_theirs() -> None:
    plain = model()
    rows = [
        measured(tanh_probe(n, 256), "bfloat16", factor * seconds)
        for n, factor in ((64, 1.5), (256, 2.0))
        for seconds in [plain.price(tanh(n, 256), "bfloat16").seconds]
    ]
    found = model(rows).price(tanh(128, 256), "bfloat16")
    factor = found.seconds / plain.price(tanh(128, 256), "bfloat16").seconds
    assert found.source == "interpolated"
    assert 1.5 < factor < 2.0


def test_a_plain_product_tells_of_its_neighbors_in_the_same_dtype_only() -> None:
    plain = model()
    spec = [TensorSpec(shape, "float32") for shape in ((128, 128), (128, 160))]
    near = OpCall("MatMul", {}, tuple(spec), (TensorSpec((128, 160), "float32"),))
    rows = [measured(matmul_probe(128, 128, 128), "bfloat16", 1e-3)]
    assert model(rows).price(near, "bfloat16").source == "interpolated"
    assert model(rows).price(near, "float32") == plain.price(near, "float32")


def test_far_from_everything_measured_the_profile_counts() -> None:
    rows = [measured(tanh_probe(8, 8), "bfloat16", 1.0)]
    found = model(rows).price(tanh(4096, 4096), "bfloat16")
    assert found == model().price(tanh(4096, 4096), "bfloat16")


SLOWER = ("Tanh", "Exp", "Sigmoid", "Relu", "Neg")


def unary_rows(ops: tuple[str, ...], factor: float, dtype: str) -> list[Measured]:
    plain = model()
    spec = TensorSpec((256, 256), "float32")
    return [
        measured(
            dataclasses.replace(tanh_probe(256, 256), op=op),
            dtype,
            factor * plain.price(OpCall(op, {}, (spec,), (spec,)), dtype).seconds,
        )
        for op in ops
    ]


def test_a_device_slower_than_its_profile_is_so_where_nothing_was_measured() -> None:
    expected = model().cast_price(1 << 20, "float32", "bfloat16")
    factors = []
    for count in range(1, len(SLOWER) + 1):
        rows = unary_rows(SLOWER[:count], 2.0, "float32")
        found = model(rows).cast_price(1 << 20, "float32", "bfloat16")
        assert found.error == expected.error
        factors.append(found.seconds / expected.seconds)
    assert factors[0] == 1.0
    assert factors == sorted(factors)
    assert 1.8 < factors[-1] < 2.0


def test_a_kernel_that_is_slow_in_16_bits_says_nothing_about_other_ops() -> None:
    rows = unary_rows(SLOWER, 5.0, "bfloat16")
    spec = TensorSpec((256, 256), "float32")
    other = OpCall("Square", {}, (spec,), (spec,))
    assert model(rows).price(other, "bfloat16") == model().price(other, "bfloat16")


def test_slow_memory_says_nothing_about_products_that_were_not_measured() -> None:
    rows = unary_rows(SLOWER, 5.0, "float32")
    spec = TensorSpec((256, 256), "float32")
    product = OpCall("MatMul", {}, (spec, spec), (spec,))
    assert model(rows).price(product, "float32") == model().price(product, "float32")


def anchors_of(*of_classes: tuple[float, float]) -> list[list[Anchor]]:
    return [[Anchor(place(0.0), r, 0.05, seconds=s)] for r, s in of_classes]


def test_many_small_ops_count_no_more_than_their_seconds() -> None:
    large = [(0.1, 1e-2), (0.1, 1e-2), (0.1, 1e-2)]
    small = [(3.0, 1e-6)] * 20
    assert typical(anchors_of(*large, *small)) < 0.1


def test_classes_that_disagree_as_much_as_they_are_off_tell_nothing() -> None:
    assert typical(anchors_of((0.4, 1.0), (-0.3, 1.0), (0.2, 1.0))) == 0.0
    assert typical([]) == typical(anchors_of((2.0, 1.0))) == 0.0
    assert typical(anchors_of(*[(0.7, 1.0)] * 9)) == pytest.approx(0.7, rel=0.1)


def test_a_probe_that_cannot_be_read_back_tells_of_itself_only() -> None:
    foreign = Probe("NoSuchOp", (), (), (TensorSpec((4,), "float32"),))
    found = model([measured(foreign, "float32", 1.0)])
    assert found.price(tanh(8, 8), "float32") == model().price(tanh(8, 8), "float32")


def test_what_of_an_op_overflows_the_cache_is_priced_on_cold_data() -> None:
    fitting, twice, huge = (CACHED_BYTES // 4 * n for n in (1, 2, 256))
    sizes = (fitting, twice, huge)
    rows = [measured(tanh_probe(n), "float32", 1e-3, cold=2e-3) for n in sizes]
    found = [model(rows).price(tanh(n), "float32", tanh_probe(n)) for n in sizes]
    assert [price.seconds for price in found] == pytest.approx(
        [1e-3, 1.5e-3, 2e-3], rel=0.01
    )


def test_a_product_reuses_what_it_reads_and_is_priced_warm() -> None:
    probe = matmul_probe(2048, 2048, 2048)
    spec = TensorSpec((2048, 2048), "float32")
    call = OpCall("MatMul", {}, (spec, spec), (spec,))
    found = model([measured(probe, "float32", 1e-2, cold=2e-2)])
    assert found.price(call, "float32", probe).seconds == 1e-2


def place(*sizes: float, parts: tuple[str, ...] = ("Tanh",)) -> ClassPoint:
    return ClassPoint(sizes, parts)


ratios = st.floats(-2, 2)
sizes = st.floats(0, 20)
anchors = st.lists(
    st.builds(Anchor, st.builds(place, sizes, sizes), ratios, st.floats(0.03, 0.2)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=100)
@given(anchors, sizes, sizes)
def test_a_correction_lies_between_those_measured(
    measured_at: list[Anchor], x: float, y: float
) -> None:
    found = correction_at(place(x, y), measured_at)
    assert found is not None
    values = [anchor.log_ratio for anchor in measured_at]
    assert min(values) - 1e-9 <= found.log_ratio <= max(values) + 1e-9


@settings(max_examples=100)
@given(ratios, st.floats(0, 10), st.floats(0.01, 10))
def test_the_error_grows_with_distance(ratio: float, near: float, more: float) -> None:
    anchor = Anchor(place(0.0), ratio, 0.05)
    errors = [
        found.error
        for distance in (near, near + more)
        if (found := correction_at(place(distance), [anchor]))
    ]
    assert 0.05 <= errors[0] < errors[1]


def test_neighbors_that_disagree_are_less_sure() -> None:
    def error(other: float) -> float:
        pair = [Anchor(place(0.0), 0.1, 0.05), Anchor(place(2.0), other, 0.05)]
        found = correction_at(place(1.0), pair)
        assert found is not None
        return found.error

    assert error(0.1) < error(0.5)


def test_a_fused_product_is_farther_from_a_plain_one_than_from_its_like() -> None:
    like = Anchor(place(0.0), 0.1, 0.05)
    plain = correction_at(place(0.0), [like])
    fused = correction_at(place(0.0, parts=("Tanh", "fused.Relu")), [like])
    assert plain is not None and fused is not None
    assert plain.error < fused.error


def test_nothing_measured_nothing_corrected() -> None:
    assert correction_at(place(1.0), []) is None
